"""Llama2-7B fine-tuned with LoRA on samsum, evaluated on MMLU. The manifest is
manifests/cases/llama2-7b-lora.yaml."""
