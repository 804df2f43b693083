//! Content parts: which hold text, and what the others are taken to cost. Never the length of their base64.

use serde_json::Value;

use super::audio;
use super::base64_text::Base64Text;
use super::image::{self, ImageRule};

/// What parts that are not text cost. Estimates for the reservation; the charge follows the reported usage.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    /// An image whose size cannot be told (a remote URL, which is never fetched, an id, an unknown format) costs the
    /// most that one can.
    pub image: ImageRule,
    /// A file given by id or URL, a video, and the least an inline file costs.
    pub file: u64,
    /// A part of a type that is not known here.
    pub unknown_part: u64,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { image: ImageRule::default(), file: 1_024, unknown_part: 256 }
    }
}

/// Documents are mostly fonts and pictures: about 2,000 tokens in 250 kB.
const FILE_BYTES_PER_TOKEN: u64 = 128;

/// The text of a part that is text.
pub(super) fn text(part: &Value) -> Option<&str> {
    match part["type"].as_str() {
        Some("text" | "input_text" | "output_text") => part["text"].as_str(),
        Some("refusal") => part["refusal"].as_str(),
        _ => None,
    }
}

impl Estimates {
    /// Tokens of a part that is not text.
    pub fn part(&self, part: &Value) -> u64 {
        match part["type"].as_str() {
            // Chat completions nest the URL, the Responses API does not.
            Some("image_url" | "input_image") => {
                let image = &part["image_url"];
                let detail = image["detail"].as_str().or_else(|| part["detail"].as_str());
                self.image(image["url"].as_str().or_else(|| image.as_str()), detail)
            }
            Some("input_audio") => audio::tokens(part["input_audio"]["data"].as_str().unwrap_or_default()),
            Some("file" | "input_file") => {
                let nested = bytes_of(&part["file"]["file_data"]);
                self.file.max(nested.max(bytes_of(&part["file_data"])) / FILE_BYTES_PER_TOKEN)
            }
            Some("video_url" | "input_video") => self.file,
            _ => self.unknown_part,
        }
    }

    fn image(&self, url: Option<&str>, detail: Option<&str>) -> u64 {
        if detail == Some("low") {
            return self.image.low();
        }
        match url.and_then(image::size_of_data_url) {
            Some(size) => self.image.high(size),
            None => self.image.worst(),
        }
    }
}

fn bytes_of(data: &Value) -> u64 {
    data.as_str().and_then(Base64Text::new).map_or(0, Base64Text::len)
}
