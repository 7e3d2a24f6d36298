"""Errors that callers of the engine get, as against defects in the package."""


class InvalidRequestError(ValueError):
    """What was asked for cannot be done, and the message says what to change.

    Only these are told to strangers. Any other ValueError is a defect, whose message is for the log.
    """


class EngineDeadError(RuntimeError):
    """The engine stopped, or has not loaded yet; the message names the failure that stopped it, if any."""
