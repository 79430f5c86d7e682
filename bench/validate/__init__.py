"""How well the simulator's engine model predicts a real server: fitted on some sessions, judged on others."""
