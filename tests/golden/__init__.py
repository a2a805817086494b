"""Golden outputs: what the verbs gave when they were recorded, and the tests that they still give it.

python -m tests.golden record                       write what today's code gives
python -m tests.golden record --only recall/locomo  the same for some of it
python -m tests.golden compare [--only …] [--slow]  compare without writing
python -m tests.golden store NAME                   keep a database as it is written today, beside the earlier ones

Only public modules are imported, so that a move of inner ones is judged by these files and does not change them. Of
conversations that are not ours nothing is recorded but versions, scores, counts and digests.
"""
