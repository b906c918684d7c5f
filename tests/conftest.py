"""What every test runs under. No deadline: machines are shared, and a slow example is no fault."""

from hypothesis import settings

settings.register_profile("tito", deadline=None, print_blob=True)
settings.load_profile("tito")
