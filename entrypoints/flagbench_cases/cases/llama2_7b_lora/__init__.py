"""Fine-tuning with LoRA: Llama2-7B on samsum, evaluated on MMLU, and two geometries on random weights and ids. The
manifests are manifests/cases/llama2-7b-lora.yaml, llama3.1-8b-lora.yaml and qwen2.5-7b-lora.yaml."""
