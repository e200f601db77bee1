//! The fixed fields of many records, one column per field: see `columns/records.py`.

use crate::fields::{i32_at, i64_at, size_at, u16_at};
use crate::layout::{FIXED_SIZE, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN};

const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const V6_EXTRA: usize = 12;
const CRC_MASK: u32 = 0x7FFF_FFFF;

/// The columns, in the order of the Python class `Records`; numbers in native byte order.
#[derive(Default)]
pub struct Columns {
    pub offsets: Vec<u8>,
    pub flags: Vec<u8>,
    pub born_ms: Vec<u8>,
    pub store_ms: Vec<u8>,
    pub crcs: Vec<u8>,
    pub body_starts: Vec<u8>,
    pub body_sizes: Vec<u8>,
    pub properties_starts: Vec<u8>,
    pub properties_sizes: Vec<u8>,
}

impl Columns {
    pub fn in_order(&self) -> [&[u8]; 9] {
        [
            &self.offsets,
            &self.flags,
            &self.born_ms,
            &self.store_ms,
            &self.crcs,
            &self.body_starts,
            &self.body_sizes,
            &self.properties_starts,
            &self.properties_sizes,
        ]
    }
}

/// Return the columns of the records that fill *block*; None if it is not a sequence of whole records.
pub fn measure(block: &[u8]) -> Option<Columns> {
    let mut columns = Columns::default();
    let mut at: usize = 0;
    while at < block.len() {
        let size = size_at(block, at)?;
        let end = at.checked_add(size)?;
        if size < RECORD_SIZE_MIN {
            return None;
        }
        measure_one(block.get(at..end)?, at, &mut columns)?;
        at = end;
    }
    Some(columns)
}

fn measure_one(record: &[u8], start: usize, columns: &mut Columns) -> Option<()> {
    let (magic, flags) = (i32_at(record, 4)?, i32_at(record, 36)?);
    let wide = usize::from(magic == MAGIC_V2);
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return None;
    }
    let born_extra = if flags & BORN_HOST_V6 != 0 { V6_EXTRA } else { 0 };
    let store_extra = if flags & STORE_HOST_V6 != 0 { V6_EXTRA } else { 0 };
    let body_at = FIXED_SIZE.checked_add(born_extra)?.checked_add(store_extra)?;
    let body_size = size_at(record, body_at.checked_sub(4)?)?;
    let topic_at = body_at.checked_add(body_size)?;
    let topic_size =
        if wide == 1 { usize::from(u16_at(record, topic_at)?) } else { usize::from(*record.get(topic_at)?) };
    let properties_at = topic_at.checked_add(1)?.checked_add(wide)?.checked_add(topic_size)?.checked_add(2)?;
    let properties_size = usize::from(u16_at(record, properties_at.checked_sub(2)?)?);
    if properties_at.checked_add(properties_size)? != record.len() {
        return None;
    }
    let store_ms = i64_at(record, 56_usize.checked_add(born_extra)?)?;
    columns.offsets.extend_from_slice(&i64_at(record, 20)?.to_ne_bytes());
    columns.flags.extend_from_slice(&flags.to_ne_bytes());
    columns.born_ms.extend_from_slice(&i64_at(record, 40)?.to_ne_bytes());
    columns.store_ms.extend_from_slice(&store_ms.to_ne_bytes());
    columns.crcs.extend_from_slice(&i32_at(record, 8)?.to_ne_bytes());
    for (column, number) in [
        (&mut columns.body_starts, start.checked_add(body_at)?),
        (&mut columns.body_sizes, body_size),
        (&mut columns.properties_starts, start.checked_add(properties_at)?),
        (&mut columns.properties_sizes, properties_size),
    ] {
        column.extend_from_slice(&i64::try_from(number).ok()?.to_ne_bytes());
    }
    Some(())
}

/// Return a byte for each body of *block*: 1 if it matches its checksum. None if the columns do not fit together.
pub fn match_bodies(block: &[u8], starts: &[u8], sizes: &[u8], crcs: &[u8]) -> Option<Vec<u8>> {
    let (count, rest) = (crcs.len() / 4, crcs.len() % 4);
    let wide = count.checked_mul(8)?;
    if rest != 0 || starts.len() != wide || sizes.len() != wide {
        return None;
    }
    let mut matches = Vec::with_capacity(count);
    let (starts, sizes, crcs) = (starts.as_chunks::<8>().0, sizes.as_chunks::<8>().0, crcs.as_chunks::<4>().0);
    for ((start, size), crc) in starts.iter().zip(sizes).zip(crcs) {
        let start = usize::try_from(i64::from_ne_bytes(*start)).ok()?;
        let end = start.checked_add(usize::try_from(i64::from_ne_bytes(*size)).ok()?)?;
        let found = crc32fast::hash(block.get(start..end)?) & CRC_MASK;
        matches.push(u8::from(found.cast_signed() == i32::from_ne_bytes(*crc)));
    }
    Some(matches)
}
