"""The command `tito`, one file a command. `main` imports click alone; a command's file is imported when it is used."""
