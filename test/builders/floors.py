"""What the models of these tests reach, and the floors that the tests hold them to.

`.venv/bin/python -m pytest -rP TEST` prints what TEST reaches. Whoever changes weights, prompts or
trainings measures anew by the tests named here (those with * are marked slow), and writes the new
values down. A floor lies below the least value by as much as a change of the prompts may cost.
"""


def reached(what: str, value: float) -> float:
    """The value; `pytest -rP` shows the line."""
    print(f"reached: {value:.2f} {what}")
    return value


# Right answers to the 20 shipped pictures, all held out.
# 17: engine/test_requests.py -k pictures_are_read
PICTURES_READ = 16

# Tokens a round from here on. On the shipped documents and charts.
# 6.94 in float32 and in bfloat16: engine/test_requests.py engine/test_bf16.py -k acceptance
ACCEPT_LEN_READ = 6.0

# The same of a chain, `--speculative-eagle-topk 1`.
# 5.76: .venv/bin/glance bench --dtype float32 --arms plain chain
ACCEPT_LEN_READ_BY_CHAIN = 5.0

# On the requests of an audit: pictures and texts.
# 4.48: engine/test_audit.py
ACCEPT_LEN_AUDIT = 3

# On a shipped chart under a grammar that allows the whole answer.
# 6.00: engine/test_grammar.py -k still_drafted
ACCEPT_LEN_GRAMMAR = 4

# Of answers of 48 tokens that a penalty or a logit bias bends away from what the head was trained
# on: below this, branches would hardly take part.
# 1.74 (logit bias) to 2.98 (a negative frequency penalty): engine/test_penalties.py
ACCEPT_LEN_BENT = 1.5

# The same where EOS and the stop tokens are ruled out for 30 tokens.
# 1.46 to 4.33: engine/test_penalties.py -k min_new_tokens
ACCEPT_LEN_NO_STOP = 1.2

# Of answers of a few tokens, sampled: a round seldom gives more than one.
# 1.21 (text) and 1.24 (a picture): engine/test_sampling.py -k follow
ACCEPT_LEN_SAMPLED = 1.1

# On two charts and a document in one conversation; the head was trained on one picture a prompt.
# TURNS: engine/test_pages.py -k cached_pages
ACCEPT_LEN_TURNS = 2

# Correct drafts a round of a drafter that puts the head's best candidate last among its siblings.
# 2.35: engine/test_probe.py -k scattered
CORRECT_DRAFTS_PROBED = 2

# Of a head whose K and V projections are turned upside down: at most.
# 1.15: engine/test_weights.py -k tensors_for_the_draft
ACCEPT_LEN_WITHOUT_CONTEXT = 2

# Of heads trained on 36 rows for 20 epochs, on those rows; the second on rows held out. What a
# training of seconds reaches depends on the processor's rounding.
# 1.83 by GLANCE's, 1.50 by EAGLE3's*; held out, EAGLE3's: 1.26*:
# engine/test_training.py -k learns_and_serves
ACCEPT_LEN_TOY = 1.4
ACCEPT_LEN_TOY_HELD_OUT = 1.2

# Of the random Qwen2.5-VL, whose head drafts the four tokens that the target repeats most.
# 1.13: engine/test_qwen25vl.py -k branches
ACCEPT_LEN_FAVOURITES = 1.1
