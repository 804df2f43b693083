//! Made-up texts of every kind that a prompt may hold, the hard ones for a tokenizer among them. The same on every
//! machine.

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Each kind with its name, at least `bytes` long and not much longer.
pub(super) fn all(bytes: usize) -> Vec<(&'static str, String)> {
    let mut random = SmallRng::seed_from_u64(7);
    vec![
        ("prose", repeat(bytes, || prose(&mut random))),
        ("code", repeat(bytes, || code(&mut random))),
        ("JSON", repeat(bytes, || object(&mut random))),
        ("Chinese characters", repeat(bytes, || chars(&mut random, '\u{4e00}'..='\u{62ff}', 40) + "。")),
        ("emoji", repeat(bytes, || chars(&mut random, '\u{1f300}'..='\u{1f64f}', 40))),
        ("Cyrillic", repeat(bytes, || chars(&mut random, 'а'..='я', 7) + " ")),
        ("base64, one line", repeat(bytes, || letters(&mut random, BASE64, 64))),
        ("hexadecimal, one line", repeat(bytes, || letters(&mut random, b"0123456789abcdef", 64))),
        ("letters, one word", repeat(bytes, || letters(&mut random, b"abcdefghijklmnopqrstuvwxyz", 64))),
        ("one letter", "a".repeat(bytes)),
        ("one character", "漢".repeat(bytes / 3 + 1)),
        ("spaces", " ".repeat(bytes)),
        ("signs", repeat(bytes, || letters(&mut random, b"-=_+*/|<>!?.,;:'\"()[]{}", 64))),
    ]
}

const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const WORDS: &str = "the of and to a in is that it was for on are with as be at one have this from or had by not but \
    what some we can out other were all there when up use your how said an each she which do their time if will way \
    about many then them would write like so these her long make thing see him two has look more day could go come \
    did number sound no most people my over know water than call first who may down side been now find any new work \
    part take get place made live where after back little only round man year came show every good me give our under \
    reservation settlement throughput penstock turbine quota tenant latency gateway Lisbon Tuesday January don't it's";

fn repeat(bytes: usize, mut piece: impl FnMut() -> String) -> String {
    let mut text = String::with_capacity(bytes + 256);
    while text.len() < bytes {
        text += &piece();
    }
    text
}

/// A sentence, one word in ten of which nobody has seen before.
fn prose(random: &mut SmallRng) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut sentence = String::new();
    for at in 0..random.random_range(5..25) {
        sentence += if at == 0 { "" } else { " " };
        match random.random_range(0..10) {
            0 => {
                let length = random.random_range(4..12);
                sentence += &letters(random, b"aabcdeeefghiiklmnoopqrsttuvwxyz", length);
            }
            _ => sentence += words[random.random_range(0..words.len())],
        }
    }
    sentence + [". ", ", ", "?\n", ".\n\n"][random.random_range(0..4)]
}

fn code(random: &mut SmallRng) -> String {
    let name = |random: &mut SmallRng| {
        let length = random.random_range(3..9);
        letters(random, b"abcdefghiklmnoprstuvwxyz", length)
    };
    let (a, b, c) = (name(random), name(random), name(random));
    let number: u32 = random.random_range(0..10_000);
    match random.random_range(0..4) {
        0 => format!("    let {a}_{b} = self.{c}.iter().map(|x| x + {number}).collect::<Vec<_>>();\n"),
        1 => format!("        if {a}.{b}({number}) != {c} {{\n            return Err(Error::{a}());\n        }}\n"),
        2 => format!("pub fn {a}(&mut self, {b}: &str) -> Option<u32> {{ // {c} {a}\n"),
        _ => format!("}}\n\n#[test]\nfn {a}_{b}_{c}() {{\n\tassert_eq!({a}({number}), \"{b}\");\n"),
    }
}

fn object(random: &mut SmallRng) -> String {
    let (id, value): (u32, f64) = (random.random(), random.random());
    let name = letters(random, b"abcdefghiklmnoprstuvwxyz", 8);
    format!("{{\"id\":{id},\"name\":\"{name}\",\"value\":{value:.4},\"tags\":[\"{}\",null,true]}},\n", &name[..3])
}

fn letters(random: &mut SmallRng, from: &[u8], length: usize) -> String {
    (0..length).map(|_| char::from(from[random.random_range(0..from.len())])).collect()
}

fn chars(random: &mut SmallRng, range: std::ops::RangeInclusive<char>, length: usize) -> String {
    (0..length).map(|_| random.random_range(range.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_long_as_asked_for_and_always_the_same() {
        let texts = all(5_000);
        assert_eq!(texts, all(5_000));
        assert!(texts.iter().all(|(_, text)| (5_000..6_000).contains(&text.len())));
    }
}
