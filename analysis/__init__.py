"""What a record says: clocks, outcomes, tails, gates, comparison, ranking, reports. Reads ``harness.record`` only."""
