"""Core is tested on Python 3.8 too, where hypothesis is not installed."""

try:
    from hypothesis import settings
except ImportError:
    collect_ignore = ["test_redaction.py"]
else:
    settings.register_profile("without deadlines", deadline=None)  # a busy machine makes no example fail
    settings.load_profile("without deadlines")
