//! Which node of a Cluster has which keys. Pure.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>

use redis::{RedisResult, Value, from_redis_value};

use super::address::Primary;

pub const SLOTS: u16 = 16384;

/// The slot of a key: CRC16 (XMODEM) of what stands between its first braces, if anything does, modulo 16384.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

/// Slots `first` to `last`, both included, are those of `primary`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: u16,
    pub last: u16,
    pub primary: Primary,
}

/// By first slot. Slots that nobody serves are in no range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotMap(Vec<Range>);

impl SlotMap {
    /// From the reply of `CLUSTER SLOTS` of the node `asked`, which may leave out its own host.
    pub fn read(reply: Value, asked: &str) -> RedisResult<Self> {
        let entries: Vec<Vec<Value>> = from_redis_value(reply)?;
        let mut ranges = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut parts = entry.into_iter();
            let mut number = || from_redis_value::<u16>(parts.next().unwrap_or(Value::Nil));
            let (first, last) = (number()?, number()?);
            let node: Vec<Value> = from_redis_value(parts.next().unwrap_or(Value::Nil))?;
            let mut node = node.into_iter();
            let host: Option<String> = from_redis_value(node.next().unwrap_or(Value::Nil))?;
            let port: u16 = from_redis_value(node.next().unwrap_or(Value::Nil))?;
            let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| asked.to_owned());
            ranges.push(Range { first, last, primary: (host, port) });
        }
        ranges.sort_by_key(|range| range.first);
        Ok(Self(ranges))
    }

    pub fn primary(&self, slot: u16) -> Option<&Primary> {
        let after = self.0.partition_point(|range| range.first <= slot);
        let range = self.0.get(after.checked_sub(1)?)?;
        (slot <= range.last).then_some(&range.primary)
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// A hash tag whose keys are those of `primary`; made of `%`, which no org's tag holds but before two digits.
    pub fn tag_of(&self, primary: &Primary) -> Option<String> {
        let owned = self.0.iter().any(|range| range.primary == *primary);
        // A node has one slot of 16384 at the least: the first fit comes long before the last number.
        let mut tags = (0..1_000_000).map(|number| format!("%probe{number}"));
        if owned { tags.find(|tag| self.primary(slot_of(tag)) == Some(primary)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("ps1:{acme}:L:1"), slot_of("ps1:{acme}:dl"));
        assert_eq!(slot_of("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS, "empty braces are part of the key");
        assert_eq!(
            slot_of("foo{{bar}}zap"),
            crc16(b"{bar") % SLOTS,
            "the first brace that opens, the first that closes"
        );
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".into())])
    }

    #[test]
    fn a_map_is_read_and_finds_the_node_of_every_slot_that_is_served() {
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = Value::Array(vec![range(6000, 16383, node(text("b"), 2)), range(0, 5460, node(Value::Nil, 1))]);
        let map = SlotMap::read(reply, "asked").expect("a map");
        let found: Vec<_> = [0, 5460, 5461, 5999, 6000, 16383].map(|slot| map.primary(slot).cloned()).into();
        let (a, b) = (Some(("asked".to_owned(), 1)), Some(("b".to_owned(), 2)));
        assert_eq!(found, [a.clone(), a.clone(), None, None, b.clone(), b]);
        let primary = a.expect("a node");
        let tag = map.tag_of(&primary).expect("a tag");
        assert_eq!(map.primary(slot_of(&format!("ps1:{{{tag}}}:gw"))), Some(&primary));
        assert_eq!(map.tag_of(&("c".to_owned(), 3)), None);
    }
}
