//! Server-sent events (WHATWG HTML, "Server-sent events"): one encoder, one incremental decoder.
//! The decoder finds where events end, whatever the cut of the bytes; it never decodes text it is not asked for.

use bytes::{Buf, Bytes, BytesMut};

pub const DONE: &str = "[DONE]";

/// `data: <payload>` and the blank line. `payload` must not contain a line end (JSON never does).
pub fn encode(payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + 8);
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\n\n");
    out.freeze()
}

/// One complete event block, its terminating blank line included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The bytes exactly as they came.
    pub raw: Bytes,
}

/// An event of more than the decoder's limit arrived without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    pub limit: usize,
}

/// Splits a byte stream into event blocks. Line ends may be LF, CRLF or CR, and may be cut anywhere.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for an end.
    scanned: usize,
    limit: usize,
    /// A block ended on CR: an LF that comes next belongs to that line end.
    swallow_lf: bool,
}

impl Decoder {
    /// `limit`: the most bytes one event may take before it is an error.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, limit, swallow_lf: false }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes held that are not yet a complete event.
    pub fn pending(&self) -> &[u8] {
        &self.buffer
    }

    /// The next complete event, or `None` until more bytes come.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLong> {
        if self.swallow_lf && !self.buffer.is_empty() {
            if self.buffer[0] == b'\n' {
                self.buffer.advance(1);
            }
            self.swallow_lf = false;
        }
        match self.find_end() {
            Some(end) => {
                self.swallow_lf = self.buffer[end - 1] == b'\r' && end == self.buffer.len();
                let mut end = end;
                if self.buffer[end - 1] == b'\r' && self.buffer.get(end) == Some(&b'\n') {
                    end += 1;
                }
                self.scanned = 0;
                Ok(Some(Event { raw: self.buffer.split_to(end).freeze() }))
            }
            None if self.buffer.len() > self.limit => Err(TooLong { limit: self.limit }),
            None => Ok(None),
        }
    }

    /// Position just after the first blank line: two line ends in a row.
    fn find_end(&mut self) -> Option<usize> {
        let bytes = &self.buffer[..];
        let mut at = self.scanned;
        while let Some(offset) = memchr::memchr2(b'\n', b'\r', &bytes[at..]) {
            let first = at + offset;
            let next = match line_end(bytes, first) {
                Some(next) => next,
                None => {
                    self.scanned = first;
                    return None;
                }
            };
            match bytes.get(next) {
                Some(b'\n' | b'\r') => return Some(next + 1),
                Some(_) => at = next,
                None => {
                    self.scanned = first;
                    return None;
                }
            }
        }
        self.scanned = bytes.len();
        None
    }
}

/// The position after the line end that starts at `at`; `None` if a CR is last and an LF may still follow.
fn line_end(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes[at], bytes.get(at + 1)) {
        (b'\n', _) => Some(at + 1),
        (_, Some(b'\n')) => Some(at + 2),
        (_, Some(_)) => Some(at + 1),
        (_, None) => None,
    }
}

impl Event {
    /// The `data` field: its lines joined by LF, one leading space of each removed. `None` without a data line.
    pub fn data(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
        let mut lines = self.lines().filter_map(|line| field(line, b"data"));
        let first = lines.next()?;
        let mut rest = lines.peekable();
        if rest.peek().is_none() {
            return Some(first.into());
        }
        let mut joined = first.to_vec();
        for line in rest {
            joined.push(b'\n');
            joined.extend_from_slice(line);
        }
        Some(joined.into())
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.raw.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty())
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(name)?;
    if rest.is_empty() {
        return Some(rest);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Vec<Event> {
        let mut decoder = Decoder::new(1 << 20);
        let mut events = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            while let Some(event) = decoder.next_event().expect("under the limit") {
                events.push(event);
            }
        }
        events
    }

    fn data(events: &[Event]) -> Vec<String> {
        events.iter().filter_map(|e| e.data().map(|d| String::from_utf8_lossy(&d).into_owned())).collect()
    }

    #[test]
    fn the_space_after_the_colon_is_optional() {
        assert_eq!(data(&decode(&[b"data:a\n\ndata: b\n\n"])), ["a", "b"]);
    }

    #[test]
    fn a_comment_block_is_an_event_without_data() {
        let events = decode(&[b": ping\n\ndata: x\n\n"]);
        assert_eq!(events.len(), 2);
        assert_eq!(data(&events), ["x"]);
    }

    #[test]
    fn several_data_lines_are_joined() {
        assert_eq!(data(&decode(&[b"event: m\ndata: a\ndata: b\n\n"])), ["a\nb"]);
    }

    #[test]
    fn an_event_over_the_limit_is_an_error() {
        let mut decoder = Decoder::new(4);
        decoder.push(b"data: too long");
        assert_eq!(decoder.next_event(), Err(TooLong { limit: 4 }));
    }

    proptest! {
        #[test]
        fn any_cut_of_the_bytes_gives_the_same_events(
            texts in prop::collection::vec("[a-z é]{0,12}", 0..6),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let whole: String = texts.iter().map(|t| format!("data: {t}{end}{end}")).collect();
            let mut places: Vec<usize> = cuts.iter().map(|c| c.index(whole.len() + 1)).collect();
            places.extend([0, whole.len()]);
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|w| &whole.as_bytes()[w[0]..w[1]]).collect();
            prop_assert_eq!(data(&decode(&pieces)), texts);
        }
    }
}
