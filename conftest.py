"""What every test runs under. No deadline: machines are shared, and a slow example is no fault.

Generated examples are the same in every run, so that a run tells what a change did; `--hypothesis-profile hunt` draws others.
hypothesis would draw the constants too of what happens to be imported from outside of site-packages when a test begins.
`few` is for what is run in full under another Python; `amounts.examples` keeps to it.
"""

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

providers._get_local_constants = Constants

settings.register_profile("tito", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("hunt", deadline=None, print_blob=True)
settings.register_profile("few", settings.get_profile("tito"), max_examples=20)
settings.load_profile("tito")
