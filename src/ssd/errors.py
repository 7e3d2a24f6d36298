"""What is raised for callers to read, as against what went wrong in here."""


class InvalidRequestError(ValueError):
    """What was asked for cannot be done, and the message says what to change.

    Only these are told to strangers. Any other ValueError is a defect, whose message is for the log.
    """
