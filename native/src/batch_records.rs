//! The records of a batch that is split: see `store/log/batch_records.py`.

use memchr::memmem;

use crate::fields::i32_at;
use crate::java_hash::extend_hash;
use crate::layout::{FIXED_SIZE, HOSTS_V6, first_item};

const TAGS: &[u8] = b"TAGS\x01";
const INNER_COUNT: &[u8] = b"INNER_NUM\x01";
const PROPERTIES_SIZE_MAX: usize = 32767;
const CRC_MASK: u32 = 0x7FFF_FFFF;
const V6_EXTRA: usize = 12;
const HEAD_SIZE_MAX: usize = FIXED_SIZE + 2 * V6_EXTRA;

#[derive(Default)]
pub struct Packed {
    pub records: Vec<u8>,
    pub entries: Vec<[u8; 20]>,
    pub positions: Vec<i64>,
    pub body_size: usize,
}

/// What all records of a batch have in common.
pub struct Shared<'a> {
    pub head: &'a [u8],
    pub topic_part: &'a [u8],
    pub end: i64,
    pub size_max: usize,
}

/// Return the records of a batch; None if it is not one of plain messages that fit before the end.
pub fn pack(batch: &[u8], shared: &Shared<'_>, mut offset: i64, mut position: i64) -> Option<Packed> {
    let count_guess = batch.len() / 64;
    let overhead = shared.head.len().checked_add(shared.topic_part.len())?;
    let mut packed = Packed::default();
    packed.records.reserve(batch.len().checked_add(overhead.checked_mul(count_guess.min(4096))?)?);
    let mut rest = batch;
    while !rest.is_empty() {
        let item = first_item(rest)?;
        if item.body.len() > shared.size_max || item.properties.len() > PROPERTIES_SIZE_MAX {
            return None;
        }
        if memmem::find(item.properties, INNER_COUNT).is_some() {
            return None;
        }
        let tags_code = tags_code(item.properties)?;
        // The item ends as its record does: with the size of the properties, and the properties.
        let tail = rest.get(item.size.checked_sub(item.properties.len())?.checked_sub(2)?..item.size)?;
        let size = overhead.checked_add(item.body.len())?.checked_add(tail.len())?;
        let size_field = i32::try_from(size).ok()?;
        let next = position.checked_add(i64::from(size_field))?;
        if next > shared.end {
            return None;
        }
        let mut space = [0; HEAD_SIZE_MAX];
        let head = space.get_mut(..shared.head.len())?;
        head.copy_from_slice(shared.head);
        put(head, 0, size_field.to_be_bytes())?;
        put(head, 8, (crc32fast::hash(item.body) & CRC_MASK).to_be_bytes())?;
        put(head, 16, item.flag.to_be_bytes())?;
        put(head, 20, offset.to_be_bytes())?;
        put(head, 28, position.to_be_bytes())?;
        let body_size_at = head.len().checked_sub(4)?;
        put(head, body_size_at, i32::try_from(item.body.len()).ok()?.to_be_bytes())?;
        for part in [&*head, item.body, shared.topic_part, tail] {
            packed.records.extend_from_slice(part);
        }
        let mut entry = [0; 20];
        put(&mut entry, 0, position.to_be_bytes())?;
        put(&mut entry, 8, size_field.to_be_bytes())?;
        put(&mut entry, 12, i64::from(tags_code).to_be_bytes())?;
        packed.entries.push(entry);
        packed.positions.push(position);
        packed.body_size = packed.body_size.checked_add(item.body.len())?;
        (position, offset) = (next, offset.checked_add(1)?);
        rest = rest.get(item.size..)?;
    }
    (!packed.entries.is_empty()).then_some(packed)
}

/// Return whether *head* has the size that its host bits state.
pub fn is_head(head: &[u8]) -> bool {
    let flags = i32_at(head, 36).unwrap_or_default() & HOSTS_V6;
    head.len() == FIXED_SIZE.saturating_add(V6_EXTRA.saturating_mul(flags.count_ones() as usize))
}

/// Return the hash of the tag, 0 without one; None if the last mark of a tag is not a property with a value.
fn tags_code(properties: &[u8]) -> Option<i32> {
    let Some(at) = memmem::rfind(properties, TAGS) else { return Some(0) };
    if properties.get(..at)?.last().is_some_and(|byte| *byte != 2) {
        return None;
    }
    let value = properties.get(at.checked_add(TAGS.len())?..)?.split(|byte| *byte == 2).next()?;
    (!value.is_empty()).then(|| extend_hash(0, value).cast_signed())
}

fn put<const N: usize>(target: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *target.get_mut(at..)?.first_chunk_mut::<N>()? = value;
    Some(())
}
