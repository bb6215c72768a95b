"""What the shipped models reach, and the floors that the tests hold them to.

New weights are measured anew by the command beside each floor, in float32 on a CPU; a floor lies
below the least value there by as much as a change of the prompts may cost.
"""

# Right answers to the 20 shipped pictures, all held out. Measured: 17, by `make demo`.
PICTURES_READ = 16

# Accept length on the shipped documents and charts. Measured: 6.94 in float32 and in bfloat16, by
# `make bench ARGS="--budgets 32"`.
ACCEPT_LEN_READ = 6.0

# The same of a chain, `--speculative-eagle-topk 1`. Measured: 5.76.
ACCEPT_LEN_READ_BY_CHAIN = 5.0

# Accept length of answers of 48 tokens that a penalty or a logit bias bends away from what the head
# was trained on: below this, branches would hardly take part. Measured by `pytest
# test/engine/test_penalties.py`: 1.74 (logit bias) to 2.98 (a negative frequency penalty).
ACCEPT_LEN_BENT = 1.5

# The same where EOS and the stop tokens are ruled out for 30 tokens. Measured: 1.46 to 4.33.
ACCEPT_LEN_NO_STOP = 1.2
