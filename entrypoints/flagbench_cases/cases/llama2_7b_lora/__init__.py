"""Llama2-7B fine-tuned by LoRA on samsum, examined on MMLU. The manifest is manifests/cases/llama2-7b-lora.yaml."""
