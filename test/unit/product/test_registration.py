"""Who asks for GLANCE gets it, or reads the one line that says why not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    """Every case of ``hosts.py``, by name."""
    ran = subprocess.run(
        [sys.executable, str(HERE / "hosts.py")],
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"name"')]
    assert ran.returncode == 0, ran.stderr[-4000:]
    return {row["name"]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("case", "settled"),
    [
        ("as it is", "GLANCE N=32 K=8 B=16 intel_amx"),
        ("lower case", "N=32 K=8 B=16 intel_amx"),
        ("next version, same surface", "GLANCE N=32 K=8 B=16 intel_amx"),
        ("chain", "GLANCE N=16 K=1 B=16 intel_amx"),
        ("next version, changed, not asked", "None N=None K=None"),
        ("other registry, not asked", "None N=None K=None"),
    ],
)
def test_it_resolves(outcomes, case, settled):
    assert outcomes[case]["ended"] == "resolved", outcomes[case]
    assert settled in outcomes[case]["line"]


CHANGED = (
    "has sglang.srt.speculative.eagle_utils:eagle_prepare_for_verify (verify_input, batch), "
    "expected (verify_input, req_to_token_pool, batch, target_worker)"
)


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("next version, changed", ["sglang 0.5.24", CHANGED, "install sglang==0.5.23"]),
        ("same version, changed", ["sglang 0.5.23", CHANGED, "install sglang==0.5.23"]),
        ("two changes", ["alloc_for_spec_decode", "AttributeError", "(and 1 more)"]),
        ("other registry", ["sglang 0.6.0", "SpeculativeAlgorithm.register (name)"]),
        ("more to answer", ["sglang 0.5.23", "is_something_new"]),
        ("no metadata", ["no installed distribution named sglang"]),
    ],
)
def test_a_host_that_does_not_match_is_refused_in_one_line(outcomes, case, parts):
    got = outcomes[case]
    assert got["ended"] in ("Unavailable", "SystemExit"), got
    assert got["line"].startswith("GLANCE is not available: ")
    assert "\n" not in got["line"] and "Unknown" not in got["line"]
    for part in parts:
        assert part in got["line"]


@pytest.mark.parametrize(
    ("case", "flag"),
    [
        ("budget of one", "--speculative-num-draft-tokens: got 1"),
        ("two ranks", "--tp-size=2"),
        ("no mask", "--attention-backend='torch_native'"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_flag(outcomes, case, flag):
    got = outcomes[case]
    assert got["ended"] == "Refusal" and flag in got["line"], got
