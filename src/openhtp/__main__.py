"""``python -m openhtp`` is ``openhtp``."""

from openhtp.cli.main import main

if __name__ == "__main__":
    main()
