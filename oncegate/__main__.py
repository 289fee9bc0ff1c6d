"""``python -m oncegate`` is ``oncegate``."""

from oncegate.gateway.cli.main import main

if __name__ == "__main__":
    main()
