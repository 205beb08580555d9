"""`python -m warplens`: the same as the command `warplens`."""

from warplens.cli import main

if __name__ == "__main__":
    main(prog_name="warplens")
