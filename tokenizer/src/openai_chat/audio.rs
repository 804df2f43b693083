//! What spoken input costs: its seconds, told by the header of a WAV or MP3 file. Nothing is decoded.

use super::base64_text::Base64Text;

/// OpenAI counts one token for 100 ms of audio.
const TOKENS_A_SECOND: f64 = 10.0;
/// Of a file that does not tell: speech in the codecs of calls and notes. Music would have more bytes a second, so the
/// estimate is too high for it, never too low.
const UNKNOWN_BYTES_A_SECOND: f64 = 4_000.0;
/// Chunks or tags that are walked through before the sound begins.
const WALK: usize = 64;

pub(super) fn tokens(data: &str) -> u64 {
    let Some(data) = Base64Text::new(data) else { return 1 };
    let seconds = wav(data).or_else(|| mp3(data)).unwrap_or(data.len() as f64 / UNKNOWN_BYTES_A_SECOND);
    ((seconds * TOKENS_A_SECOND).ceil() as u64).max(1)
}

/// Bytes of sound by bytes a second. Of a recording that was not finished the header says no length, or one beyond the
/// file: then all that is there counts.
fn wav(data: Base64Text<'_>) -> Option<f64> {
    let head: [u8; 12] = data.read(0)?;
    if &head[..4] != b"RIFF" || &head[8..] != b"WAVE" {
        return None;
    }
    let mut at = 12;
    let mut rate = 0;
    for _ in 0..WALK {
        let chunk: [u8; 8] = data.read(at)?;
        let length = le32(&chunk, 4);
        at += 8;
        match &chunk[..4] {
            b"fmt " => rate = le32(&data.read::<12>(at)?, 8),
            b"data" => {
                let there = data.len().saturating_sub(at as u64);
                let said = u64::from(length);
                let bytes = if said == 0 || said > there { there } else { said };
                return (rate > 0).then(|| bytes as f64 / f64::from(rate));
            }
            _ => {}
        }
        // Chunks begin at even places.
        at = at.checked_add(length as usize + (length as usize & 1))?;
    }
    None
}

/// By the number of frames where the first frame tells it, else by the bit rate of the first.
fn mp3(data: Base64Text<'_>) -> Option<f64> {
    let mut at = 0;
    for _ in 0..WALK {
        let Some([b'I', b'D', b'3', _, _, _, a, b, c, d]) = data.read(at) else { break };
        // Seven bits a byte.
        let length = [a, b, c, d].iter().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7F));
        at = at.checked_add(10 + length)?;
    }
    let frame = Frame::read(data.read(at)?)?;
    match frame.count(data, at) {
        Some(frames) => Some(f64::from(frames) * frame.samples / frame.rate),
        None => Some(data.len().saturating_sub(at as u64) as f64 * 8.0 / frame.bits_a_second),
    }
}

/// The header of a Layer III frame.
struct Frame {
    bits_a_second: f64,
    /// Samples a second, and in a frame.
    rate: f64,
    samples: f64,
    /// Where an encoder writes about the whole file.
    side: usize,
}

impl Frame {
    fn read(head: [u8; 4]) -> Option<Self> {
        const KILOBITS_1: [u32; 16] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0];
        const KILOBITS_2: [u32; 16] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0];
        const RATES: [u32; 4] = [44_100, 48_000, 32_000, 0];
        // Eleven bits of sync, version (0 = 2.5, 2 = 2, 3 = 1), layer (1 = III).
        let [0xFF, second, third, fourth] = head else { return None };
        let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
        if second >> 5 != 7 || version == 1 || layer != 1 {
            return None;
        }
        let first_version = version == 3;
        let kilobits = (if first_version { KILOBITS_1 } else { KILOBITS_2 })[usize::from(third >> 4)];
        let slower = match version {
            3 => 1,
            2 => 2,
            _ => 4,
        };
        let rate = RATES[usize::from(third >> 2 & 3)] / slower;
        let mono = fourth >> 6 == 3;
        let side = match (first_version, mono) {
            (true, false) => 32,
            (true, true) | (false, false) => 17,
            (false, true) => 9,
        };
        (kilobits > 0 && rate > 0).then(|| Self {
            bits_a_second: f64::from(kilobits) * 1000.0,
            rate: rate.into(),
            samples: if first_version { 1152.0 } else { 576.0 },
            side,
        })
    }

    /// How many frames the file has, as its first says when bit rates vary.
    fn count(&self, data: Base64Text<'_>, at: usize) -> Option<u32> {
        if let Some([b'X' | b'I', b'i' | b'n', b'n' | b'f', b'g' | b'o', _, _, _, flags, a, b, c, d]) =
            data.read::<12>(at + 4 + self.side)
        {
            return (flags & 1 == 1).then(|| u32::from_be_bytes([a, b, c, d])).filter(|frames| *frames > 0);
        }
        let other: [u8; 18] = data.read(at + 4 + 32)?;
        let frames = u32::from_be_bytes([other[14], other[15], other[16], other[17]]);
        (&other[..4] == b"VBRI" && frames > 0).then_some(frames)
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    fn check(bytes: &[u8], expect: u64) {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        assert_eq!(tokens(&text), expect);
        assert_eq!(tokens(&format!("data:audio/x;base64,{text}")), expect);
    }

    /// 16 kHz, 16 bits, mono: 32,000 bytes a second.
    fn wav_file(said: u32, there: usize) -> Vec<u8> {
        let format = [&[1, 0, 1, 0][..], &16_000u32.to_le_bytes(), &32_000u32.to_le_bytes(), &[2, 0, 16, 0]].concat();
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        file.extend([&format[..], b"data", &said.to_le_bytes(), &vec![0; there]].concat());
        file
    }

    #[test]
    fn wav_counts_the_bytes_of_its_sound() {
        check(&wav_file(64_000, 64_000), 20);
        check(&wav_file(64_000, 65_000), 20); // what follows is not sound
        check(&wav_file(64_001, 64_001), 21); // begun is counted
        check(&wav_file(0, 32_000), 10);
        check(&wav_file(u32::MAX, 32_000), 10);
    }

    #[test]
    fn mp3_counts_by_bit_rate_or_by_frames() {
        let constant = |head: [u8; 4], bytes: usize| [&head[..], &vec![0; bytes - 4]].concat();
        check(&constant([0xFF, 0xFB, 0x90, 0x00], 160_000), 100); // 128 kbit/s
        check(&constant([0xFF, 0xF3, 0x40, 0xC0], 40_000), 100); // version 2, 32 kbit/s, mono
        let tagged = [b"ID3\x04\0\0\0\0\x01\x00".as_slice(), &[0; 128], &constant([0xFF, 0xFB, 0x90, 0], 16_000)];
        check(&tagged.concat(), 10);
        // 44,100 samples a second, 1,152 in each of 383 frames: ten seconds whatever the bytes.
        let mut xing = constant([0xFF, 0xFB, 0x90, 0x00], 1_000);
        xing[36..48].copy_from_slice(&[b'X', b'i', b'n', b'g', 0, 0, 0, 1, 0, 0, 1, 127]);
        check(&xing, 101);
        let mut vbri = constant([0xFF, 0xFB, 0x90, 0x00], 1_000);
        vbri[36..40].copy_from_slice(b"VBRI");
        vbri[50..54].copy_from_slice(&383u32.to_be_bytes());
        check(&vbri, 101);
    }

    #[test]
    fn what_is_neither_is_estimated_by_its_bytes() {
        check(&[0; 4_000], 10);
        check(b"RIFF\0\0\0\0WAVE", 1);
        check(b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", 1);
        check(b"ID3\x04\0\0\x7f\x7f\x7f\x7f", 1);
        check(&[0xFF, 0xFB, 0xF0, 0], 1);
        check(b"", 1);
        assert_eq!((tokens("data:,x"), tokens("!!!!!!!!!!!!!!!!")), (1, 1));
    }
}
