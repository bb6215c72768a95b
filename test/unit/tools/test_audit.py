"""The audit against servers of a few lines, whose answers are known and wrong where planted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sglang.glance.check.audit import compare, first_divergence, near_tie_bound
from sglang.glance.cli.run import run
from sglang.glance.serving.client import Reply

IDS = [7, 8, 9, 10]
# At every position plain's best token leads token 50 by 2 logits and token 60 by 3.
LEADS = {50: 2.0, 60: 3.0}


@dataclass
class Fake:
    """What a fake server says. ``changes``: token by (which answer, position)."""

    algorithm: str | None = None
    model: str = "/models/reader"
    dtype: str = "float32"
    rounds: int = 2
    leads: dict[int, float] = field(default_factory=lambda: dict(LEADS))
    changes: dict[tuple[int, int], int] = field(default_factory=dict)
    asked: list[dict] = field(default_factory=list)
    url: str = ""

    def get(self, path: str) -> dict:
        if path == "/model_info":
            return {"model_path": self.model, "architectures": ["A"], "weight_version": "1"}
        return {"dtype": self.dtype, "speculative_algorithm": self.algorithm}

    def answer(self, body: dict) -> dict:
        number = len(self.asked)
        self.asked.append(body)
        ids = [self.changes.get((number, at), token) for at, token in enumerate(IDS)]
        meta: dict = {"spec_verify_ct": self.rounds} if self.algorithm else {}
        if body.get("logprobs"):
            row = [[-0.1, None, ""], *([-0.1 - lead, i, ""] for i, lead in self.leads.items())]
            meta["output_top_logprobs"] = [[[row[0][0], i, ""], *row[1:]] for i in ids]
        return {"choices": [{"response_token_ids": ids, "meta_info": meta}]}


@pytest.fixture
def serving() -> Iterator[Callable[[Fake], Fake]]:
    running = []

    def start(fake: Fake) -> Fake:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(fake.get(self.path))

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                self.reply(fake.answer(json.loads(self.rfile.read(length))))

            def reply(self, value: dict) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        fake.url = f"http://127.0.0.1:{server.server_port}"
        return fake

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def audited(serving: Callable[[Fake], Fake], tmp_path: Path) -> Callable[..., tuple[int, dict]]:
    """Runs the command on three requests; its exit code and report."""
    listed = tmp_path / "requests.jsonl"
    listed.write_text("\n".join(json.dumps({"prompt": f"q{i}"}) for i in range(3)))

    def audits(plain: Fake, glance: Fake, *flags: str) -> tuple[int, dict]:
        serving(plain)
        serving(glance)
        out = tmp_path / "report.json"
        urls = ["--plain-url", plain.url, "--glance-url", glance.url]
        code = run("audit", [*urls, "--requests", str(listed), "--json", str(out), *flags])
        return code, json.loads(out.read_text()) if out.exists() else {}

    return audits


def test_equal_answers(audited: Callable) -> None:
    plain, glance = Fake(), Fake("GLANCE")
    code, report = audited(plain, glance)
    assert code == 0
    assert report["verdict"] == "identical"
    assert (report["requests"], report["compared_tokens"]) == (3, 12)
    assert report["divergences"] == report["control_divergences"] == []
    assert report["largest_margin_at_divergence"] is None
    assert report["smallest_margin"] == pytest.approx(2.0)
    assert report["accept_length"] == 1.5  # (12 tokens - 3 first ones) / 6 rounds
    assert len(plain.asked) == 6 and len(glance.asked) == 3  # plain twice: the control
    assert all(body["temperature"] == 0 for body in plain.asked + glance.asked)


def test_a_planted_divergence_is_found(audited: Callable) -> None:
    code, report = audited(Fake(), Fake("GLANCE", changes={(1, 2): 60}))
    assert code == 1
    assert report["verdict"] == "faults"
    (found,) = report["divergences"]
    assert (found["request"], found["position"]) == (1, 2)
    assert (found["plain_id"], found["other_id"]) == (9, 60)
    assert found["margin"] == pytest.approx(2.0) and found["gap"] == pytest.approx(3.0)
    assert found["near_tie"] is False
    assert report["compared_tokens"] == 11  # what follows the divergence cannot be compared
    assert report["largest_margin_at_divergence"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("dtype", "lead", "code"),
    [
        ("bfloat16", 0.49, 0),
        ("bfloat16", 0.51, 1),
        ("float16", 0.06, 0),
        ("float16", 0.07, 1),
        ("float32", 1e-6, 1),
    ],
)
def test_near_ties_pass_up_to_the_bound(
    audited: Callable, dtype: str, lead: float, code: int
) -> None:
    plain = Fake(dtype=dtype, leads={50: lead})
    got, report = audited(plain, Fake("GLANCE", dtype=dtype, changes={(0, 0): 50}))
    assert got == code
    assert report["divergences"][0]["near_tie"] is (code == 0)
    assert report["verdict"] == ("faults" if code else "near ties only")


def test_a_near_tie_for_another_token_is_a_fault(audited: Callable) -> None:
    """The margin is small, but the token that GLANCE took is far behind, or not listed at all."""
    for token in (60, 77):
        plain = Fake(dtype="bfloat16", leads={50: 0.1, 60: 3.0})
        glance = Fake("GLANCE", dtype="bfloat16", changes={(2, 1): token})
        code, report = audited(plain, glance)
        assert code == 1 and report["divergences"][0]["margin"] == pytest.approx(0.1)


def test_a_bound_of_ones_own(audited: Callable) -> None:
    changes = {(0, 0): 50}
    assert audited(Fake(), Fake("GLANCE", changes=changes), "--bound", "2.5")[0] == 0
    assert audited(Fake(), Fake("GLANCE", changes=changes), "--bound", "1.5")[0] == 1


def test_a_control_that_strays_is_said(audited: Callable) -> None:
    plain = Fake(changes={(4, 1): 60})  # the second time it is asked
    code, report = audited(plain, Fake("GLANCE", changes={(1, 1): 60}))
    assert code == 1
    assert "does not repeat itself" in report["verdict"]
    assert [found["request"] for found in report["control_divergences"]] == [1]


@pytest.mark.parametrize(
    ("plain", "glance", "said"),
    [
        (Fake(), Fake("GLANCE", model="/models/other"), "the servers differ in model"),
        (Fake(), Fake("GLANCE", dtype="bfloat16"), "the servers differ in dtype"),
        (Fake("NGRAM"), Fake("GLANCE"), "the plain server must run without one"),
        (Fake(), Fake(), "runs plain decoding"),
        (Fake(dtype="auto"), Fake("GLANCE", dtype="auto"), "start both servers with --dtype"),
        (Fake(), Fake("GLANCE", rounds=0), "verified no draft"),
        (Fake(dtype="fp8"), Fake("GLANCE", dtype="fp8"), "give one with --bound"),
    ],
)
def test_servers_that_cannot_be_compared(
    audited: Callable, capsys: pytest.CaptureFixture, plain: Fake, glance: Fake, said: str
) -> None:
    code, report = audited(plain, glance)
    assert code == 2 and report == {}
    assert said in capsys.readouterr().err


def test_one_model_under_two_folders(audited: Callable) -> None:
    assert audited(Fake(model="/a/reader/"), Fake("GLANCE", model="/b/reader"))[0] == 0


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture) -> None:
    nowhere = "http://127.0.0.1:9"
    assert run("audit", ["--plain-url", nowhere, "--glance-url", nowhere]) == 2
    assert f"no answer from {nowhere}/model_info" in capsys.readouterr().err


def test_one_url_alone_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        run("audit", ["--plain-url", "http://127.0.0.1:9"])


def test_an_answer_that_ends_elsewhere_is_a_fault() -> None:
    short, long = Reply([1, 2]), Reply([1, 2, 3], best=[{}, {}, {3: -0.1, 4: -0.2}])
    for plain, other, ids in ((long, short, (3, None)), (short, long, (None, 3))):
        found = first_divergence(0, plain, other, bound=0.5)
        assert found is not None and not found.near_tie
        assert (found.position, (found.plain_id, found.other_id)) == (2, ids)
    assert compare([short], [short], 0.5) == (2, [])


def test_the_bound_is_four_ulps() -> None:
    import torch

    for name in ("bfloat16", "float16"):
        dtype = getattr(torch, name)
        ulp = torch.finfo(dtype).eps * 16
        near = torch.tensor([16.0, 16.0 + ulp], dtype=dtype)
        assert near[0] != near[1] and float(near[1] - near[0]) == ulp
        assert near_tie_bound(name) == 4 * ulp
    assert near_tie_bound("float32") == 0
