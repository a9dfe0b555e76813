"""Programs that run under another tool's interpreter and time its metric code; they import nothing of ours."""
