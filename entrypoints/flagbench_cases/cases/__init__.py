"""The cases, one package each: workload, model, data, preparation and the tiny data set."""
