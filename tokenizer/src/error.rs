//! Why a tokenizer could not be loaded.

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error(
        "tokenizer.ggml.model {found:?} is not supported; supported are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)"
    )]
    Model { found: String },
    #[error("tokenizer.ggml.pre {found:?} is unknown, its text would be split wrongly; known are {known}")]
    Pre { found: String, known: String },
    #[error("vocabulary: {reason}; the model file is damaged or was converted wrongly, convert it again")]
    Vocabulary { reason: String },
    #[error("{path}: {reason}; expected a tokenizer.json of the Hugging Face `tokenizers` library")]
    Json { path: String, reason: String },
    #[error("the model's chat template does not compile: {reason}; give the model another template or use completions")]
    Template { reason: String },
    #[error("there is no built-in tokenizer {name:?}; use o200k_base or cl100k_base")]
    Builtin { name: String },
}
