//! An HTTP/1.1 response, decoded from bytes cut anywhere: status, then body. Pure; just what a load generator needs,
//! because a full client would cost more than the servers under test.

use memchr::memmem;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("malformed response head")]
    Head,
    #[error("response head over {MAX_HEAD} bytes")]
    HeadTooLong,
    #[error("malformed chunked body")]
    Chunk,
}

const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Sized {
        left: u64,
    },
    /// In a chunk's size line; `size` so far. Digits end at an extension.
    ChunkSize {
        size: u64,
        digits: bool,
    },
    Chunk {
        left: u64,
    },
    /// The line end after a chunk's data.
    ChunkEnd,
    /// Trailers, up to the empty line.
    Trailer {
        line_empty: bool,
    },
    UntilClose,
    Done,
}

#[derive(Debug)]
pub struct Response {
    state: State,
    head: Vec<u8>,
    pub status: u16,
    /// The connection may carry another request.
    pub keep_alive: bool,
}

impl Default for Response {
    fn default() -> Self {
        Self { state: State::Head, head: Vec::new(), status: 0, keep_alive: true }
    }
}

impl Response {
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Status line and headers.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The peer closed: whether that was the end of the response.
    pub fn closed(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Done;
        }
        self.is_done()
    }

    /// Hands the body bytes among `bytes` to `body`, in order, in as few pieces as they came.
    pub fn feed(&mut self, bytes: &[u8], body: &mut impl FnMut(&[u8])) -> Result<(), Malformed> {
        let mut rest = bytes;
        if self.state == State::Head {
            let held = self.head.len();
            self.head.extend_from_slice(bytes);
            let Some(end) = self.parse_head()? else { return Ok(()) };
            rest = &bytes[end - held..];
        }
        while !rest.is_empty() {
            rest = self.step(rest, body)?;
        }
        Ok(())
    }

    /// The length of the head, once it is complete.
    fn parse_head(&mut self) -> Result<Option<usize>, Malformed> {
        if memmem::find(&self.head, b"\r\n\r\n").is_none() {
            return if self.head.len() > MAX_HEAD { Err(Malformed::HeadTooLong) } else { Ok(None) };
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(end) = parsed.parse(&self.head).map_err(|_| Malformed::Head)? else {
            return Err(Malformed::Head);
        };
        self.status = parsed.code.unwrap_or(0);
        self.keep_alive = parsed.version == Some(1);
        self.state = State::UntilClose;
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).map_err(|_| Malformed::Head)?;
                let left = text.trim().parse().map_err(|_| Malformed::Head)?;
                self.state = if left == 0 { State::Done } else { State::Sized { left } };
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                self.state = State::ChunkSize { size: 0, digits: true };
            } else if header.name.eq_ignore_ascii_case("connection") && header.value.eq_ignore_ascii_case(b"close") {
                self.keep_alive = false;
            }
        }
        if matches!(self.status, 204 | 304) {
            self.state = State::Done;
        }
        if self.state == State::UntilClose {
            self.keep_alive = false;
        }
        self.head.truncate(end);
        Ok(Some(end))
    }

    /// Takes at least one byte of `bytes` and returns the rest.
    fn step<'a>(&mut self, bytes: &'a [u8], body: &mut impl FnMut(&[u8])) -> Result<&'a [u8], Malformed> {
        match &mut self.state {
            State::Sized { left } | State::Chunk { left } => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= most as u64;
                let (now, rest) = bytes.split_at(most);
                body(now);
                self.state = match self.state {
                    State::Sized { left: 0 } => State::Done,
                    State::Chunk { left: 0 } => State::ChunkEnd,
                    state => state,
                };
                return Ok(rest);
            }
            State::UntilClose => {
                body(bytes);
                return Ok(&[]);
            }
            State::ChunkSize { size, digits } => match (bytes[0], bytes[0].is_ascii_hexdigit()) {
                (byte, true) if *digits => {
                    let digit = u64::from((byte as char).to_digit(16).ok_or(Malformed::Chunk)?);
                    *size = size.checked_mul(16).and_then(|s| s.checked_add(digit)).ok_or(Malformed::Chunk)?;
                }
                (b'\n', _) if *size == 0 => self.state = State::Trailer { line_empty: true },
                (b'\n', _) => self.state = State::Chunk { left: *size },
                (b'\r' | b';' | b' ' | b'\t', _) => *digits = false,
                _ if *digits => return Err(Malformed::Chunk),
                _ => {}
            },
            State::ChunkEnd => match bytes[0] {
                b'\r' => {}
                b'\n' => self.state = State::ChunkSize { size: 0, digits: true },
                _ => return Err(Malformed::Chunk),
            },
            State::Trailer { line_empty } => match bytes[0] {
                b'\n' if *line_empty => self.state = State::Done,
                b'\n' => *line_empty = true,
                b'\r' => {}
                _ => *line_empty = false,
            },
            // Bytes after the answer: a server that speaks out of turn.
            State::Done | State::Head => return Err(Malformed::Head),
        }
        Ok(&bytes[1..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Result<(u16, Vec<u8>, bool, bool), Malformed> {
        let mut response = Response::default();
        let mut body = Vec::new();
        for piece in pieces {
            response.feed(piece, &mut |bytes| body.extend_from_slice(bytes))?;
        }
        Ok((response.status, body, response.is_done(), response.keep_alive))
    }

    #[test]
    fn framings_are_understood() {
        let sized = b"HTTP/1.1 429 No\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        assert_eq!(decode(&[sized]), Ok((429, b"abc".to_vec(), true, false)));
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n1\r\nd\r\n0\r\nt: 1\r\n\r\n";
        assert_eq!(decode(&[chunked]), Ok((200, b"abcd".to_vec(), true, true)));
        let until_close = b"HTTP/1.1 200 OK\r\n\r\nabc";
        assert_eq!(decode(&[until_close]), Ok((200, b"abc".to_vec(), false, false)));
    }

    #[test]
    fn what_is_no_response_is_refused() {
        assert_eq!(decode(&[b"SSH-2.0-x\r\n\r\n"]), Err(Malformed::Head));
        assert_eq!(decode(&[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz"]), Err(Malformed::Chunk));
        assert_eq!(decode(&[&[b'x'; MAX_HEAD + 1]]), Err(Malformed::HeadTooLong));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_body(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len() + 1)).collect();
            places.extend([0, wire.len()]);
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|w| &wire[w[0]..w[1]]).collect();
            prop_assert_eq!(decode(&pieces), Ok((200, chunks.concat(), true, true)));
        }
    }
}
