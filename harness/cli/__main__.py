"""``python -m harness.cli`` is the command ``trigpoint``."""

from harness.cli import main

if __name__ == "__main__":
    main()
