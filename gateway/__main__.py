"""``python -m gateway`` is ``oncegate``."""

from gateway.cli.main import main

if __name__ == "__main__":
    main()
