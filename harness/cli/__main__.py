"""``python -m harness.cli`` is the command ``trigpoint``."""

from harness.cli.app import main

if __name__ == "__main__":
    main()
