"""What GLANCE refuses at start, flag by flag, and what it settles when a flag is absent."""

import json
from types import SimpleNamespace

import pytest
from builders.shipped import VOCAB
from sglang.glance.shipped import HEAD, READER
from sglang.srt.speculative.glance.engine.start import survey
from sglang.srt.speculative.glance.engine.start.args import (
    REQUIRED,
    TREE_BACKENDS,
    flag_of,
    settle,
    settle_models,
)
from sglang.srt.speculative.glance.refusal import Refusal


def server_args(**changes) -> SimpleNamespace:
    """ServerArgs' fields that GLANCE reads, at the host's defaults, on the shipped models."""
    fields = {
        **REQUIRED,
        "device": "cpu",
        "dtype": "bfloat16",
        "model_path": str(READER),
        "revision": None,
        "trust_remote_code": False,
        "json_model_override_args": "{}",
        "speculative_draft_model_path": str(HEAD),
        "speculative_draft_model_revision": None,
        "speculative_dflash_block_size": None,
        "speculative_num_draft_tokens": None,
        "speculative_eagle_topk": None,
        "speculative_draft_attention_backend": None,
        "attention_backend": "intel_amx",
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "speculative_attention_mode": "prefill",
        "max_running_requests": 8,
        "enable_memory_saver": False,
        "enable_mixed_chunk": True,
        "disable_overlap_schedule": False,
    }
    return SimpleNamespace(**{**fields, **changes})


def settled(**changes) -> SimpleNamespace:
    args = server_args(**changes)
    settle(args)
    return args


def test_absent_flags_get_the_stated_defaults():
    args = settled()
    assert args.speculative_num_draft_tokens == 32
    assert args.speculative_eagle_topk == 8
    assert args.speculative_dflash_block_size == 16
    assert args.speculative_draft_attention_backend == "intel_amx"
    assert args.enable_mixed_chunk is False
    assert settled(max_running_requests=None).max_running_requests == 48


def test_given_flags_are_kept():
    args = settled(
        speculative_num_draft_tokens=12, speculative_eagle_topk=1, speculative_dflash_block_size=12
    )
    assert args.speculative_num_draft_tokens == 12
    assert args.speculative_eagle_topk == 1
    assert args.speculative_dflash_block_size == 12


def test_a_cpu_server_without_a_backend_gets_the_one_that_reads_the_mask():
    assert settled(attention_backend=None).attention_backend == "intel_amx"


def test_a_package_of_ops_from_two_distributions_is_refused(monkeypatch):
    assert survey.kernel_mix() is None
    assert list(survey.kernel_owners()) == ["sglang-kernel-cpu"]
    installed = survey.metadata.version

    def version(name: str) -> str:
        return "9.9" if name == "sglang-kernel" else installed(name)

    monkeypatch.setattr(survey.metadata, "version", version)
    for device in ("cpu", "cuda"):
        with pytest.raises(Refusal, match=r"pip uninstall sglang-kernel-cpu sglang-kernel,"):
            settle(server_args(device=device))
    assert "sglang-kernel 9.9" in survey.cpu_path_problem()


def test_cpu_schedules_without_overlap():
    assert settled().disable_overlap_schedule is True


def test_a_memory_saver_keeps_the_head_for_the_time_after_its_release():
    """Updates bring back the target's weights alone."""
    assert settled(enable_memory_saver=True).enable_draft_weights_cpu_backup is True


OTHER_VALUES = {
    "disaggregation_mode": "decode",
    "lora_paths": ["adapter=/somewhere"],
    "speculative_draft_window_size": 512,
    "speculative_num_steps": 3,
    "speculative_accept_threshold_single": 0.9,
    "speculative_accept_threshold_acc": 0.9,
}


@pytest.mark.parametrize("field", sorted(REQUIRED))
def test_every_required_field_is_refused_by_its_flag(field):
    plain = REQUIRED[field]
    other = OTHER_VALUES.get(field, True if plain is False else 2)
    with pytest.raises(Refusal, match=f"{flag_of(field)}={other!r}".replace("[", r"\[")):
        settled(**{field: other})


def test_a_switch_nobody_set_is_not_refused():
    settled(enable_lora=None)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"device": "xpu"}, "--device"),
        ({"device": "npu:0"}, "--device"),
        ({"speculative_draft_model_path": None}, "--speculative-draft-model-path"),
        ({"attention_backend": "torch_native"}, "--attention-backend"),
        ({"attention_backend": "triton"}, "--attention-backend"),  # on this device
        ({"prefill_attention_backend": "flex_attention"}, "--prefill-attention-backend"),
        ({"decode_attention_backend": "torch_native"}, "--decode-attention-backend"),
        (
            {"speculative_draft_attention_backend": "flashinfer"},
            "--speculative-draft-attention-backend",
        ),
        (
            {"device": "cuda", "attention_backend": "trtllm_mha"},
            "--attention-backend",
        ),
        ({"speculative_num_draft_tokens": 1}, "--speculative-num-draft-tokens"),
        ({"speculative_dflash_block_size": 32}, "--speculative-dflash-block-size"),
        ({"speculative_eagle_topk": VOCAB + 1}, "--speculative-eagle-topk"),
        (
            {"speculative_num_draft_tokens": 512, "speculative_eagle_topk": 33},
            "--speculative-num-draft-tokens 512 with --speculative-eagle-topk 33",
        ),
    ],
)
def test_refusals_name_the_flag(changes, flag):
    with pytest.raises(Refusal, match=flag) as refusal:
        settled(**changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("switch", ["0", None])
def test_a_cpu_without_the_switch_is_refused_by_its_name(monkeypatch, switch):
    """Whatever the backend: SGLang puts another one there, which nobody typed."""
    if switch is None:
        monkeypatch.delenv(survey.CPU_ENGINE)
    else:
        monkeypatch.setenv(survey.CPU_ENGINE, switch)
    with pytest.raises(Refusal, match=f"{survey.CPU_ENGINE}.* set it to 1"):
        settled(attention_backend="torch_native")


@pytest.mark.parametrize("backend", TREE_BACKENDS["cuda"])
def test_gpu_backends_that_read_a_tree_mask_are_accepted(backend):
    args = settled(device="cuda:0", attention_backend=backend)
    assert args.speculative_draft_attention_backend == backend
    assert args.disable_overlap_schedule is False


@pytest.fixture
def head(tmp_path):
    """A head directory with the shipped config, to be changed."""

    def write(**changes):
        config = json.loads((HEAD / "config.json").read_text())
        config["dflash_config"].update(changes)
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return write


def test_a_fault_in_the_heads_config_stops_the_start(head):
    with pytest.raises(Refusal, match=r"target_layer_ids: got \[0, 5\].*\[0, 4\]"):
        settled(speculative_draft_model_path=head(target_layer_ids=[0, 5]))


def test_a_head_that_rewrites_the_targets_embedding_is_refused(head, tmp_path):
    path = head()
    (tmp_path / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(Refusal, match="mask_embedding.pt"):
        settled(speculative_draft_model_path=path)


def test_head_whose_weights_do_not_fit_its_config_is_refused(tmp_path):
    config = json.loads((HEAD / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 1024}))
    (tmp_path / "model.safetensors").write_bytes((HEAD / "model.safetensors").read_bytes())
    with pytest.raises(Refusal, match=r"mlp\.down_proj\.weight.*has shape .*config\.json"):
        settle_models(server_args(speculative_draft_model_path=str(tmp_path)))
