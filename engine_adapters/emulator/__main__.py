"""`python -m engine_adapters.emulator`: one emulated SGLang worker in the foreground."""

from engine_adapters.emulator.cli import main

if __name__ == "__main__":
    main()
