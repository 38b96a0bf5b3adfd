"""From a case and a stack to complete build directories: pure, without an engine or a network."""
