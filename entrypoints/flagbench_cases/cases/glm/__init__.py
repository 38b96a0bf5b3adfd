"""GLM-Large on ReCoRD, multi-token cloze: model, data and step. The manifest is manifests/cases/glm.yaml."""
