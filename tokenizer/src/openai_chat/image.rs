//! What an image costs, from its pixel size, and the pixel size from the first bytes of a data URL. Images are never
//! decoded and never fetched.

use super::base64_text::Base64Text;

/// Pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

/// How a family of models counts images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ImageRule {
    /// Scaled into 2048 x 2048, then to 768 on the short side; `tile` tokens per 512 x 512 tile and `base` on top.
    Tiles { base: u64, tile: u64 },
    /// Patches of 32 x 32, at most `most` of them, times a factor.
    Patches { factor: f64, most: u32 },
}

impl Default for ImageRule {
    fn default() -> Self {
        Self::Tiles { base: 85, tile: 170 }
    }
}

impl ImageRule {
    /// OpenAI's figures by model name: those it publishes and, from GPT-5.2 on, those it bills. The default for models
    /// that are not listed.
    pub fn of_model(name: &str) -> Self {
        const fn patches(factor: f64) -> ImageRule {
            ImageRule::Patches { factor, most: 1536 }
        }
        // The first that fits counts, so a family stands after its exceptions.
        const RULES: &[(&str, ImageRule)] = &[
            ("gpt-4o-mini", ImageRule::Tiles { base: 2833, tile: 5667 }),
            ("gpt-4.1-mini", patches(1.62)),
            ("gpt-4.1-nano", patches(2.46)),
            ("gpt-5-mini", patches(1.62)),
            ("gpt-5-nano", patches(2.46)),
            ("o4-mini", patches(1.72)),
            ("codex-mini", patches(1.72)),
            ("gpt-5.2", patches(1.2)),
            ("gpt-5.3", patches(1.2)),
            ("gpt-5.4", ImageRule::Patches { factor: 1.2, most: 2500 }),
            ("gpt-5", ImageRule::Tiles { base: 70, tile: 140 }),
            ("computer-use", ImageRule::Tiles { base: 65, tile: 129 }),
            ("o1", ImageRule::Tiles { base: 75, tile: 150 }),
            ("o3", ImageRule::Tiles { base: 75, tile: 150 }),
        ];
        RULES.iter().find(|(family, _)| name.starts_with(family)).map_or_else(Self::default, |&(_, rule)| rule)
    }

    /// The most an image can cost, whatever its size.
    pub fn worst(self) -> u64 {
        match self {
            // 2048 x 768: four tiles by two.
            Self::Tiles { base, tile } => base + 8 * tile,
            Self::Patches { factor, most } => (f64::from(most) * factor).ceil() as u64,
        }
    }

    /// `detail: low`, whatever the size.
    pub(super) fn low(self) -> u64 {
        match self {
            Self::Tiles { base, .. } => base,
            // Patch models see a 512 x 512 version.
            Self::Patches { .. } => self.high(Size { width: 512, height: 512 }),
        }
    }

    pub(super) fn high(self, size: Size) -> u64 {
        let (width, height) = (f64::from(size.width.max(1)), f64::from(size.height.max(1)));
        match self {
            Self::Tiles { base, tile } => {
                let fit = (2048.0 / width.max(height)).min(1.0);
                let short = (768.0 / (width.min(height) * fit)).min(1.0);
                let tiles = |side: f64| ((side * fit * short).round() / 512.0).ceil().max(1.0);
                base + tile * (tiles(width) * tiles(height)) as u64
            }
            Self::Patches { factor, most } => (patches(width, height, most.into()) * factor).ceil() as u64,
        }
    }
}

fn patches(width: f64, height: f64, most: f64) -> f64 {
    const SIDE: f64 = 32.0;
    let count = (width / SIDE).ceil() * (height / SIDE).ceil();
    if count <= most {
        return count;
    }
    // Scaled down so that whole patches fit one side.
    let scale = (SIDE * SIDE * most / (width * height)).sqrt();
    let (across, down) = (width * scale / SIDE, height * scale / SIDE);
    let whole = (across.floor().max(1.0) / across).min(down.floor().max(1.0) / down);
    ((across * whole).ceil() * (down * whole).ceil()).clamp(1.0, most)
}

/// The size of an image in a `data:` URL; `None` for other URLs, other formats and damaged headers.
pub(super) fn size_of_data_url(url: &str) -> Option<Size> {
    let bytes = Base64Text::new(url).filter(|_| url.starts_with("data:"))?;
    let start: [u8; 30] = bytes.read(0)?;
    match start {
        [0x89, b'P', b'N', b'G', ..] => size(be32(&start, 16), be32(&start, 20)),
        [b'G', b'I', b'F', b'8', ..] => size(le16(&start, 6).into(), le16(&start, 8).into()),
        [0xFF, 0xD8, ..] => jpeg(bytes),
        _ if &start[..4] == b"RIFF" && &start[8..12] == b"WEBP" => webp(&start),
        _ => None,
    }
}

fn size(width: u32, height: u32) -> Option<Size> {
    (width > 0 && height > 0).then_some(Size { width, height })
}

/// Walks the segments to the frame header; metadata before it (EXIF, colour profiles) is skipped, not read.
fn jpeg(bytes: Base64Text<'_>) -> Option<Size> {
    const SEGMENTS: usize = 500;
    let mut at = 2;
    for _ in 0..SEGMENTS {
        let segment: [u8; 4] = bytes.read(at)?;
        match segment {
            // Frame headers of every coding process; C4, C8 and CC are tables.
            [0xFF, 0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF, ..] => {
                let frame: [u8; 9] = bytes.read(at)?;
                return size(be16(&frame, 7).into(), be16(&frame, 5).into());
            }
            [0xFF, 0xFF, ..] => at += 1,
            [0xFF, 0x01 | 0xD0..=0xD7, ..] => at += 2,
            [0xFF, ..] => at += 2 + usize::from(be16(&segment, 2)),
            _ => return None,
        }
    }
    None
}

fn webp(start: &[u8; 30]) -> Option<Size> {
    match &start[12..16] {
        b"VP8 " => size((le16(start, 26) & 0x3FFF).into(), (le16(start, 28) & 0x3FFF).into()),
        b"VP8L" => {
            let bits = u32::from_le_bytes([start[21], start[22], start[23], start[24]]);
            size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        }
        b"VP8X" => {
            let side = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], 0]) + 1;
            size(side(24), side(27))
        }
        _ => None,
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    fn data_url(kind: &str, bytes: &[u8]) -> String {
        format!("data:image/{kind};base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    fn check(kind: &str, mut header: Vec<u8>, expect: Option<(u32, u32)>) {
        header.resize(header.len().max(64), 0);
        let size = size_of_data_url(&data_url(kind, &header)).map(|size| (size.width, size.height));
        assert_eq!(size, expect, "{kind}");
    }

    #[test]
    fn sizes_are_read_from_headers() {
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &1024u32.to_be_bytes(), &768u32.to_be_bytes()].concat();
        check("png", png, Some((1024, 768)));
        check("gif", [b"GIF89a".as_slice(), &320u16.to_le_bytes(), &200u16.to_le_bytes()].concat(), Some((320, 200)));
        let exif = [b"\xFF\xE1\x80\x00".as_slice(), &[7; 0x7FFE]].concat();
        let frame = b"\xFF\xC2\0\x11\x08\x02\x58\x03\x20".as_slice();
        check("jpeg", [b"\xFF\xD8".as_slice(), &exif, b"\xFF\xC4\0\x02", frame].concat(), Some((800, 600)));
        let lossy = [b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a".as_slice(), &[0x90, 1, 0x2C, 1]].concat();
        check("webp", lossy, Some((400, 300)));
        let lossless = [b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f".as_slice(), &(399u32 | 299 << 14).to_le_bytes()].concat();
        check("webp", lossless, Some((400, 300)));
        let extended = [b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0".as_slice(), &[0x8F, 1, 0, 0x2B, 1, 0]].concat();
        check("webp", extended, Some((400, 300)));
    }

    #[test]
    fn what_is_no_image_has_no_size() {
        check("png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec(), None);
        check("bmp", b"BM".to_vec(), None);
        check("jpeg", b"\xFF\xD8\xFF\xE1\xFF\xFF".to_vec(), None);
        check("jpeg", [b"\xFF\xD8".to_vec(), vec![0xFF; 2000]].concat(), None);
        for url in
            ["https://example.org/a.png", "data:", "data:image/png;base64,", "data:image/png;base64,!!!!", "data:,x"]
        {
            assert_eq!(size_of_data_url(url), None, "{url}");
        }
    }

    #[test]
    fn tiles_follow_the_documentation() {
        let cost = |width, height| ImageRule::default().high(Size { width, height });
        assert_eq!([cost(1024, 1024), cost(2048, 4096), cost(512, 512), cost(1, 1)], [765, 1105, 255, 255]);
        assert_eq!((cost(u32::MAX, 1), ImageRule::default().low()), (85 + 170 * 4, 85));
        let mini = ImageRule::of_model("gpt-4o-mini-2024-07-18");
        assert_eq!(mini.high(Size { width: 1024, height: 1024 }), 2833 + 4 * 5667);
    }

    #[test]
    fn patches_follow_the_documentation() {
        let cost = |width, height| ImageRule::Patches { factor: 1.0, most: 1536 }.high(Size { width, height });
        assert_eq!([cost(1024, 1024), cost(1800, 2400)], [1024, 1452]);
        assert!(cost(u32::MAX, u32::MAX) <= 1536 && cost(u32::MAX, 1) <= 1536);
        assert_eq!(ImageRule::of_model("gpt-4.1-mini").high(Size { width: 1024, height: 1024 }), 1659);
        assert_eq!(ImageRule::of_model("gpt-5.4-2026-03-05").high(Size { width: 1600, height: 1600 }), 3000);
    }

    #[test]
    fn no_image_costs_more_than_the_worst() {
        for name in ["gpt-4o", "gpt-4o-mini", "gpt-4.1-mini", "gpt-5.4", "gpt-5", "o3"] {
            let rule = ImageRule::of_model(name);
            let cost = |width, height| rule.high(Size { width, height });
            let sizes = [(1, 1), (768, 2048), (2048, 768), (2048, 2048), (4000, 1500), (99_999, 37_500), (512, 8000)];
            let costs: Vec<u64> = sizes.iter().map(|&(width, height)| cost(width, height)).collect();
            assert!(costs.iter().all(|cost| *cost <= rule.worst()), "{name}: {costs:?}, worst {}", rule.worst());
            assert!(costs.iter().any(|cost| *cost * 100 >= rule.worst() * 98), "{name}: {costs:?}, {}", rule.worst());
        }
    }
}
