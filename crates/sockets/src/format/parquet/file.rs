//! Assembles a file from pieces: their bytes are copied, and a new footer has their new offsets. The footer of each piece
//! remains behind it, compressed, to salvage a file without a last footer. Readers only use the last one.
use std::sync::Arc;

use anyhow::{Context, ensure};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};

use super::columns::schema;

/// The first and the last bytes of a file.
pub const MAGIC: &[u8; 4] = b"PAR1";
/// The last bytes of a piece in a file. Its compressed footer and the length of that come before them.
pub const PIECE_END: &[u8; 8] = b"PSHPIECE";
/// An upper bound of the length of a piece's footer.
const FOOTER_MAX: usize = 16 << 20;
/// The footer is in memory until the file is complete, so a file has no more row groups.
const MAX_GROUPS: usize = 64;
/// A file has the completeness of no more dumps.
const MAX_ACCOUNTS: usize = 4096;

/// The footer of a file that is being written.
#[derive(Debug)]
pub struct Assembler {
    schema: SchemaDescPtr,
    groups: Vec<RowGroupMetaData>,
    accounts: Vec<KeyValue>,
    rows: i64,
    /// Offset of the next piece.
    at: usize,
}

impl Default for Assembler {
    fn default() -> Self {
        let schema = Arc::new(SchemaDescriptor::new(schema()));
        Self { schema, groups: Vec::new(), accounts: Vec::new(), rows: 0, at: MAGIC.len() }
    }
}

impl Assembler {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.accounts.is_empty()
    }

    /// Adds a piece and returns the next bytes of the file.
    ///
    /// # Errors
    /// The bytes are not a piece, and nothing was added.
    pub fn add(&mut self, piece: &[u8]) -> anyhow::Result<Vec<u8>> {
        let bytes = bytes::Bytes::copy_from_slice(piece);
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).context("a damaged piece")?;
        let mut end = MAGIC.len();
        let mut groups = Vec::with_capacity(metadata.num_row_groups());
        for group in metadata.row_groups() {
            for column in group.columns() {
                let (start, length) = column.byte_range();
                end = end.max(usize::try_from(start + length)?);
            }
            groups.push(self.moved(group, self.at as i64 - MAGIC.len() as i64)?);
        }
        let footer = piece.len().checked_sub(footer_bytes(piece)).filter(|footer| end <= *footer);
        let footer = &piece[footer.context("a piece that ends too early")?..];
        let compressed = zstd::bulk::compress(footer, 1)?;
        let length = u32::try_from(compressed.len())?.to_le_bytes();
        let bytes = [&piece[MAGIC.len()..end], &compressed, &length, PIECE_END].concat();
        self.rows += metadata.file_metadata().num_rows();
        self.groups.extend(groups);
        self.accounts.extend(metadata.file_metadata().key_value_metadata().into_iter().flatten().cloned());
        self.at += bytes.len();
        Ok(bytes)
    }

    /// Removes the pieces that were added after `before`.
    pub fn rewind(&mut self, before: &Mark) {
        self.groups.truncate(before.groups);
        self.accounts.truncate(before.accounts);
        self.rows = before.rows;
        self.at = before.at;
    }

    /// The current state, for [`Self::rewind`].
    pub fn mark(&self) -> Mark {
        Mark { groups: self.groups.len(), accounts: self.accounts.len(), rows: self.rows, at: self.at }
    }

    /// Whether a new file should be begun.
    pub fn is_full(&self) -> bool {
        self.groups.len() >= MAX_GROUPS || self.accounts.len() >= MAX_ACCOUNTS
    }

    /// The bytes behind the last piece.
    pub fn footer(&self) -> Vec<u8> {
        let created_by = Some(concat!("parshall ", env!("CARGO_PKG_VERSION")).to_owned());
        let accounts = self.accounts.clone();
        let file = FileMetaData::new(1, self.rows, created_by, Some(accounts), Arc::clone(&self.schema), None);
        let metadata = ParquetMetaData::new(file, self.groups.clone());
        let mut out = Vec::new();
        let written = ParquetMetaDataWriter::new(&mut out, &metadata).finish();
        written.expect("writing to memory does not fail");
        out
    }

    /// The metadata of a row group whose offsets have changed by `by`.
    fn moved(&self, group: &RowGroupMetaData, by: i64) -> anyhow::Result<RowGroupMetaData> {
        let ordinal = i32::try_from(self.groups.len())?;
        let mut columns = Vec::with_capacity(group.num_columns());
        for (at, column) in group.columns().iter().enumerate() {
            ensure!(at < self.schema.num_columns(), "a piece with other columns");
            let mut moved = ColumnChunkMetaData::builder(self.schema.column(at))
                .set_encodings_mask(*column.encodings_mask())
                .set_num_values(column.num_values())
                .set_compression_codec(column.compression_codec())
                .set_total_compressed_size(column.compressed_size())
                .set_total_uncompressed_size(column.uncompressed_size())
                .set_data_page_offset(column.data_page_offset() + by)
                .set_dictionary_page_offset(column.dictionary_page_offset().map(|offset| offset + by));
            if let Some(statistics) = column.statistics() {
                moved = moved.set_statistics(statistics.clone());
            }
            columns.push(moved.build()?);
        }
        Ok(RowGroupMetaData::builder(Arc::clone(&self.schema))
            .set_num_rows(group.num_rows())
            .set_total_byte_size(group.total_byte_size())
            .set_ordinal(ordinal)
            .set_column_metadata(columns)
            .build()?)
    }
}

/// The piece from which [`Assembler::add`] made these bytes; `None` if it did not make them.
pub fn piece_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let (rest, length) = bytes.strip_suffix(PIECE_END)?.split_last_chunk()?;
    let (data, compressed) = rest.split_at_checked(rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?)?;
    let footer = zstd::bulk::decompress(compressed, FOOTER_MAX).ok()?;
    Some([MAGIC, data, &footer].concat())
}

/// Length of the footer at the end of a file: the metadata, their length, and the magic bytes.
fn footer_bytes(file: &[u8]) -> usize {
    let length = file.len().checked_sub(8).and_then(|at| file.get(at..)?.first_chunk().copied());
    length.map_or(0, |length| u32::from_le_bytes(length) as usize) + 8
}

/// A state of an [`Assembler`].
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    groups: usize,
    accounts: usize,
    rows: i64,
    at: usize,
}
