//! Where one value of the Redis protocol ends. Nothing is parsed: the link passes bytes on, and must know whose they are.

/// Length of the value that `bytes` starts with; `None` while it is incomplete.
pub fn frame(bytes: &[u8]) -> Option<usize> {
    let line = memchr::memmem::find(bytes, b"\r\n")?;
    let head = line + 2;
    let count = || std::str::from_utf8(&bytes[1..line]).unwrap().parse::<i64>().unwrap();
    match bytes[0] {
        b'$' => match usize::try_from(count()) {
            Ok(length) => (bytes.len() >= head + length + 2).then_some(head + length + 2),
            Err(_null) => Some(head),
        },
        b'*' => (0..count()).try_fold(head, |end, _| Some(end + frame(&bytes[end..])?)),
        _ => Some(head),
    }
}

/// Sets up a connection and touches no key, so that no client is refused it alone.
pub fn is_set_up(command: &[u8]) -> bool {
    let name = command.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    [b"SELECT".as_slice(), b"CLIENT", b"HELLO", b"AUTH"].iter().any(|set_up| name.starts_with(set_up))
}

#[test]
fn a_value_ends_where_it_ends() {
    for whole in
        ["+OK\r\n", ":12\r\n", "$-1\r\n", "$3\r\na\r\n\r\n", "*2\r\n$1\r\na\r\n*1\r\n:7\r\n", "*-1\r\n", "*0\r\n"]
    {
        assert_eq!(frame(format!("{whole}+next\r\n").as_bytes()), Some(whole.len()), "{whole:?}");
        for cut in 0..whole.len() {
            assert_eq!(frame(&whole.as_bytes()[..cut]), None, "{whole:?} up to {cut}");
        }
    }
    assert!(is_set_up(b"*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n") && !is_set_up(b"*1\r\n$4\r\nINFO\r\n"));
}
