"""The command line. Each command is a module, imported when it is called."""
