"""A tree's grammar mask, row by row, against a matcher that has read the node's path alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from builders.shipped import EOS, VOCAB
from sglang.glance.shipped import READER
from sglang.srt.constrained.llguidance_backend import GuidanceBackend
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend
from sglang.srt.speculative.glance.core.tree import build_tree, tree_links
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask
from transformers import AutoTokenizer

BUDGET, OFFSETS, TOPK = 32, 8, 4
LINES = r"([A-Z][a-z]+: [A-Z0-9.]+\n?){1,4}"
WRITTEN, LIKELY = "Order: 54", "287\nTotal: 25.60"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(READER)


@pytest.fixture(params=["xgrammar", "llguidance"])
def backend(request, tokenizer):
    if request.param == "xgrammar":
        return XGrammarGrammarBackend(tokenizer, VOCAB, model_eos_token_ids=[EOS])
    return GuidanceBackend(tokenizer, n_vocab=VOCAB, eos_token_ids=[EOS])


def matcher_after(template, tokens):
    """A matcher that has read ``tokens``, or None where it refuses one."""
    matcher = template.copy()
    for token in tokens:
        if matcher.is_terminated() or not allowed_by(matcher)[token]:
            return None
        matcher.accept_token(token)
    return matcher


def allowed_by(matcher):
    """``[VOCAB] bool``: a mask of one row, applied; everything once the grammar has ended."""
    logits = torch.zeros(1, VOCAB)
    if not matcher.is_terminated():
        row = matcher.allocate_vocab_mask(VOCAB, 1, "cpu")
        matcher.fill_vocab_mask(row, 0)
        matcher.apply_vocab_mask(logits, row)
    return logits[0] == 0


def random_tree(root, likely, seed):
    """Drafts that hold the likely tokens, EOS, and others, most of which the grammar refuses."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(VOCAB, generator=rng)[:TOPK] for _ in range(OFFSETS)])
    for offset, token in enumerate(likely[:OFFSETS]):
        ids[offset, seed % TOPK] = token
        if EOS not in ids[offset]:
            ids[offset, (seed + 1) % TOPK] = EOS
    logprobs = torch.rand(1, OFFSETS, TOPK, generator=rng) * -2
    logprobs[0, :, seed % TOPK] = -0.3
    return build_tree(torch.tensor([root]), ids[None], logprobs.sort(-1, True).values, BUDGET)


def path_to(tree, node):
    path = []
    while node > 0:
        path.append(int(tree.tokens[0, node]))
        node = int(tree.parents[0, node])
    return path[::-1]


@pytest.mark.parametrize("seed", range(6))
def test_every_row_is_that_of_its_path(backend, tokenizer, seed):
    template = backend.dispatch_regex(LINES)
    written = tokenizer.encode(WRITTEN)
    matcher = matcher_after(template, written)
    tree = random_tree(written[-1], tokenizer.encode(LIKELY), seed)
    _, child, sibling = tree_links(tree.parents)
    two = [torch.cat([x, x]) for x in (child, sibling, tree.tokens)]
    mask = build_grammar_vocab_mask(
        reqs=[SimpleNamespace(grammar=None), SimpleNamespace(grammar=matcher)],
        tree=GrammarTree.from_device(*two),
        sampling_info=SimpleNamespace(vocab_size=VOCAB, grammar_mask=None),
        device="cpu",
        barrier=None,
    )
    logits = torch.zeros(2 * BUDGET, VOCAB)
    mask.apply(logits)
    free, bound = (logits == 0).view(2, BUDGET, VOCAB)
    assert free.all()  # the request without a grammar
    legal = 0
    for node in range(BUDGET):
        on_path = matcher_after(template, written + path_to(tree, node))
        if on_path is None:
            continue  # never walked to: its parent's mask forbids it
        legal += 1
        assert torch.equal(bound[node], allowed_by(on_path)), node
    assert 2 <= legal < BUDGET
    assert torch.equal(allowed_by(matcher), bound[0])  # the tree has left no trace
