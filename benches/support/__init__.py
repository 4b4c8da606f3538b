"""Data, contests and native code that several benches share."""
