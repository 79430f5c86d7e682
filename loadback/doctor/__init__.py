"""`loadback doctor`: looks at engines, events, tokenizer, clocks and limits, and says what to fix. It changes nothing."""
