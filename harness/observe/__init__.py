"""Host, process and server-metric sampling; facts before and after. No verdicts."""
