//! Finds the longest text of a set that another text begins with, byte by byte. Nodes that follow one node lie side by
//! side, those of short texts close together: a walk through text that nobody has seen before then stays in the cache.
//! How the nodes come about is `trie::grow`'s part.

mod grow;

/// No node, no text.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The byte that leads here in the last eight bits, before it the text that ends here, all ones if none does.
    text_and_byte: u32,
    /// Where the nodes that follow begin; the highest bit if they are to be searched.
    first: u32,
    /// A bit for each byte that follows, its [`SLOT`], whose order the nodes have. If two bytes share one, how many nodes
    /// there are instead, and they are ordered by byte.
    next: u64,
}

const NO_TEXT: u32 = (1 << 24) - 1;
const SEARCH: u32 = 1 << 31;
const NOWHERE: Node = Node { text_and_byte: NO_TEXT << 8, first: 0, next: 0 };

/// Bytes that follow the same text mostly differ in this: letters of both cases from each other and from the beginnings
/// of other characters, and all their later bytes, which follow nothing else.
const SLOT: [u8; 256] = slots();

const fn slots() -> [u8; 256] {
    let mut slots = [0; 256];
    let mut byte = 0_u8;
    loop {
        slots[byte as usize] = match byte {
            b'a'..=b'z' => byte - b'a',
            b'A'..=b'Z' => 26 + byte - b'A',
            0xC0.. => 52 + byte % 12,
            _ => byte & 63,
        };
        if byte == u8::MAX {
            return slots;
        }
        byte += 1;
    }
}

#[derive(Debug)]
pub(crate) struct Trie {
    /// By the first byte, and by the first two: most steps of most walks.
    one: Vec<Node>,
    two: Vec<Node>,
    /// All longer ones.
    nodes: Vec<Node>,
}

impl Trie {
    /// Of texts in order of their length, and for each the longest other one that it begins with. `None`: too many
    /// nodes, or two texts are the same, or one has no bytes.
    pub(crate) fn new(texts: &[&[u8]]) -> Option<(Self, Vec<u32>)> {
        let (grown, shorter) = grow::Grown::new(texts)?;
        Some((grown.finish(), shorter))
    }

    /// The longest text that this one begins with, and its length.
    #[inline]
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(u32, usize)> {
        let (&first, rest) = text.split_first()?;
        let mut found = self.one[usize::from(first)].text().map(|text| (text, 1));
        let Some((&second, rest)) = rest.split_first() else { return found };
        let mut node = self.two[pair(first, second)];
        let mut length = 2;
        for byte in rest {
            if let Some(text) = node.text() {
                found = Some((text, length));
            }
            match self.step(node, *byte) {
                Some(next) => node = next,
                None => return found,
            }
            length += 1;
        }
        node.text().map(|text| (text, length)).or(found)
    }

    #[inline]
    fn step(&self, node: Node, byte: u8) -> Option<Node> {
        if node.first & SEARCH != 0 {
            return self.search(node, byte);
        }
        let bit = 1 << SLOT[usize::from(byte)];
        if node.next & bit == 0 {
            return None;
        }
        let before = (node.next & (bit - 1)).count_ones();
        let next = self.nodes[(node.first + before) as usize];
        (next.byte() == byte).then_some(next)
    }

    #[cold]
    fn search(&self, node: Node, byte: u8) -> Option<Node> {
        let first = (node.first & !SEARCH) as usize;
        let nodes = &self.nodes[first..first + node.next as usize];
        nodes.binary_search_by_key(&byte, |node| node.byte()).ok().map(|at| nodes[at])
    }

    /// The text with exactly these bytes.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.longest(text).filter(|(_, length)| *length == text.len()).map(|(text, _)| text)
    }
}

impl Node {
    #[inline]
    fn text(self) -> Option<u32> {
        let text = self.text_and_byte >> 8;
        (text != NO_TEXT).then_some(text)
    }

    #[inline]
    fn byte(self) -> u8 {
        self.text_and_byte as u8
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(texts: &[&str]) -> Option<(Trie, Vec<u32>)> {
        Trie::new(&texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn the_longest_text_is_found() {
        let (trie, shorter) = grown(&["a", "b", "abc", "xyz", "abcd", "abcdef"]).unwrap();
        for (text, expect) in [
            ("abcdefg", Some((5, 6))),
            ("abcdeg", Some((4, 4))),
            ("abc", Some((2, 3))),
            ("ab", Some((0, 1))),
            ("a", Some((0, 1))),
            ("bcd", Some((1, 1))),
            ("xy", None),
            ("q", None),
            ("", None),
        ] {
            assert_eq!(trie.longest(text.as_bytes()), expect, "{text:?}");
        }
        assert_eq!(shorter, [NONE, NONE, 0, NONE, 2, 4]);
        assert_eq!((trie.find(b"abcd"), trie.find(b"ab"), trie.find(b"")), (Some(4), None, None));
    }

    #[test]
    fn bytes_that_share_a_slot_are_told_apart() {
        assert_eq!([SLOT[usize::from(b'q')], SLOT[usize::from(b'k')]], [SLOT[16], SLOT[10]]);
        let texts = ["xxa", "xxk", "xxq", "xx\n", "xx\u{10}", "xxqk", "xxq\n"];
        let (trie, _) = grown(&texts).unwrap();
        for (id, text) in texts.iter().enumerate() {
            assert_eq!(trie.find(text.as_bytes()), Some(id as u32), "{text:?}");
        }
        assert_eq!((trie.find(b"xxc"), trie.find(b"xx\x02"), trie.longest(b"xxk\n")), (None, None, Some((1, 3))));
    }

    #[test]
    fn many_texts_are_all_found() {
        let texts: Vec<String> = (0..20_000).map(|number| format!("text number {number:05}")).collect();
        let (trie, _) = grown(&texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        for (id, text) in texts.iter().enumerate() {
            assert_eq!(trie.find(text.as_bytes()), Some(id as u32));
        }
        assert_eq!(trie.find(b"text number"), None);
    }

    #[test]
    fn the_same_text_twice_and_none_at_all_are_refused() {
        assert!(grown(&["a", "b", "a"]).is_none());
        assert!(grown(&["", "b"]).is_none());
    }
}
