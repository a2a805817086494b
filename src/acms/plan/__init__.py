"""Planning: prompt nodes, tool groups and prefix windows, shared by prompts, recall and codecs."""
