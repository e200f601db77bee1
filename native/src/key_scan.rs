//! The keys of many log records at once: see `store/keys/key_scan.py`, and `batch_keys.py` for those of a batch.

use std::collections::HashSet;

use crate::java_hash::{extend_hash, to_index_hash};
use crate::layout::{
    COMPRESSED, INNER_BATCH, PlainRecord, RECORD_SIZE_MIN, TRANSACTION_MASK, TRANSACTION_ROLLBACK, first_item,
    plain_record,
};
use crate::properties::{find_by_marker, pieces};

const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const KEYS: &[u8] = b"KEYS\x01";
const INNER_IDS: &[u8] = b"INNER_IDS\x01";
const INNER_NUM: &[u8] = b"INNER_NUM\x01";
const NO_IDS: &[u8] = b"none";
const INNER_COUNT_MAX: u32 = 0x7FFF;
const ID_SIZE_MIN: usize = 8;
const COUNT_DIGITS: usize = 4;
const BLOCK_BITS: u32 = 12;
const HEXADECIMAL: &[u8; 16] = b"0123456789ABCDEF";

/// The keys that were found, as the key index wants them, where the scan stopped, and what it cost.
pub struct Scan {
    pub keys: Vec<u8>,
    pub at: usize,
    pub count: i64,
}

/// The hash of the last topic, `#` included: most records of a slice have few topics.
struct Topic<'a> {
    name: &'a [u8],
    hash: u32,
}

pub fn scan(data: &[u8], position: i64, records_max: i64) -> Scan {
    let mut scan = Scan { keys: Vec::with_capacity(24 * 256), at: 0, count: 0 };
    let mut topic = Topic { name: b"", hash: extend_hash(0, b"#") };
    while scan.count < records_max && data.len().saturating_sub(scan.at) >= RECORD_SIZE_MIN {
        let own_position = i64::try_from(scan.at).ok().and_then(|at| position.checked_add(at));
        let Some(record) = plain_record(data, scan.at).filter(|record| Some(record.position) == own_position) else {
            break;
        };
        if record.topic != topic.name {
            topic = Topic { name: record.topic, hash: extend_hash(extend_hash(0, record.topic), b"#") };
        }
        let cost = add_keys(&record, topic.hash, &mut scan.keys);
        scan.count = scan.count.saturating_add(cost);
        scan.at = scan.at.saturating_add(record.size);
    }
    scan
}

/// Add the keys of a record. Return its cost in records.
fn add_keys(record: &PlainRecord<'_>, topic: u32, found: &mut Vec<u8>) -> i64 {
    let mut add = |key: &[u8]| {
        let hash = to_index_hash(extend_hash(topic, key));
        found.extend_from_slice(&i64::from(hash).to_ne_bytes());
        found.extend_from_slice(&record.position.to_ne_bytes());
        found.extend_from_slice(&record.store_ms.to_ne_bytes());
    };
    if record.sys_flag & INNER_BATCH == INNER_BATCH {
        let mut known: HashSet<Vec<u8>> = HashSet::new();
        for_each_batch_key(record, |key| {
            if !known.contains(key) {
                known.insert(key.to_vec());
                add(key);
            }
        });
        return i64::try_from(known.len()).unwrap_or(i64::MAX).max(1);
    }
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
        for_each_key(record.properties, &mut add);
    }
    1
}

/// Call *add* with the unique key, and with each word of the keys.
fn for_each_key(properties: &[u8], add: &mut impl FnMut(&[u8])) {
    let (mut unique, mut words): (&[u8], &[u8]) = (b"", b"");
    for piece in pieces(properties) {
        if let Some(value) = piece.strip_prefix(UNIQUE_KEY).filter(|value| !value.is_empty()) {
            unique = value;
        } else if let Some(value) = piece.strip_prefix(KEYS).filter(|value| !value.is_empty()) {
            words = value;
        }
    }
    if !unique.is_empty() {
        add(unique);
    }
    words.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).for_each(add);
}

fn for_each_batch_key(record: &PlainRecord<'_>, mut add: impl FnMut(&[u8])) {
    for_each_key(record.properties, &mut add);
    match find_by_marker(record.properties, INNER_IDS) {
        Some(NO_IDS) => (),
        Some(_) => for_each_block(record.properties, add),
        None if record.sys_flag & COMPRESSED != 0 => (),
        None => {
            if let Some(texts) = item_properties(record.body) {
                texts.iter().for_each(|text| for_each_key(text, &mut add));
            }
        }
    }
}

/// Return the properties of every item of a batch; None if the sizes do not add up.
fn item_properties(body: &[u8]) -> Option<Vec<&[u8]>> {
    let mut texts = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let item = first_item(rest)?;
        texts.push(item.properties);
        rest = rest.get(item.size..)?;
    }
    Some(texts)
}

/// Call *add* with the blocks that contain the ids of a batch's messages.
fn for_each_block(properties: &[u8], mut add: impl FnMut(&[u8])) {
    let Some((prefix, number, count)) = id_span(properties) else { return };
    let (first, last) = (number.saturating_add(1) >> BLOCK_BITS, number.saturating_add(count) >> BLOCK_BITS);
    for block in first..=last {
        let digit = HEXADECIMAL.get((block & 0xF) as usize).copied().unwrap_or_default();
        add(&[prefix, &[digit]].concat());
    }
}

/// Return a batch's id without its number, that number, and the count of ids that follow.
fn id_span(properties: &[u8]) -> Option<(&[u8], u32, u32)> {
    let unique = find_by_marker(properties, UNIQUE_KEY)?;
    let is_id = unique.len() >= ID_SIZE_MIN && unique.iter().all(|byte| HEXADECIMAL.contains(byte));
    let (prefix, digits) = unique.split_at_checked(unique.len().checked_sub(COUNT_DIGITS)?)?;
    let number = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    is_id.then_some((prefix, number, inner_count(properties)?))
}

fn inner_count(properties: &[u8]) -> Option<u32> {
    let Some(text) = find_by_marker(properties, INNER_NUM) else { return Some(1) };
    if text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    u32::try_from(count).ok().filter(|count| (1..=INNER_COUNT_MAX).contains(count))
}
