"""`python -m ssd` is `ssd`."""

from ssd.cli.main import app

if __name__ == "__main__":
    app()
