//! `NewField` and the `Writer` methods that add a field to existing records. Values come in record
//! order; the field is committed once every record has one.

use crate::error::{Error, Result};
use crate::format::compression::Compression;
use crate::format::field_type::FieldType;
use crate::format::schema::Field;
use crate::write::column::ColumnBuffer;
use crate::write::value::Value;
use crate::write::value::check_value;
use crate::write::value::{block_value, check_block};
use crate::write::writer::Writer;

/// Bytes of entries of a new field held in memory before they are written as chunks. Only the
/// commit of the field refers to these chunks.
const HELD: usize = 32 << 20;

/// A handle for a field that is being added: [`Writer::start_field`] returns it, [`Writer::fill`]
/// takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewField(u32);

/// The writer's state of a field that is being added. Its columns follow the schema's columns, in
/// the order of the fillings.
#[derive(Debug)]
pub(crate) struct Filling {
    field: Field,
    columns: usize,
    filled: u64,
}

impl Writer {
    /// Starts to add a field to the existing records. Commits pending records first.
    ///
    /// Ignores `field.id` and assigns the next free id. Several fields can be added at once.
    /// Appending is refused until they are committed.
    ///
    /// # Errors
    /// [`Error::AddField`]: the name is taken or not allowed. Otherwise as [`Writer::commit`].
    pub fn start_field(&mut self, field: &Field) -> Result<NewField> {
        self.check_usable()?;
        let refused = |detail| Error::AddField { path: self.path.clone(), field: field.name.clone(), detail };
        if self.schema().position(&field.name).is_some() {
            let detail = format!("the file has it already; add the new values as {:?}", format!("{}_v2", field.name));
            return Err(refused(detail));
        }
        if self.fillings.iter().any(|filling| filling.field.name == field.name) {
            return Err(refused("it is being added already".to_owned()));
        }
        let id = self.document.free_id().map_err(refused)?;
        let mut field = field.clone();
        field.id = id;
        self.document.schema.with(&field).map_err(refused)?;
        self.commit()?;
        let columns = ColumnBuffer::for_field(&field);
        self.fillings.push(Filling { columns: columns.len(), field, filled: 0 });
        self.columns.extend(columns);
        self.document.use_id(id);
        Ok(NewField(id))
    }

    /// Adds the values of a new field for the next records, in record order.
    ///
    /// # Errors
    /// [`Error::BadValue`]: a value does not fit, or there are more values than records; this call
    /// then adds nothing. Also failed writes.
    pub fn fill(&mut self, field: NewField, values: &[Value<'_>]) -> Result<()> {
        self.check_usable()?;
        let number = self.filling(field)?;
        self.check_room(number, values.len())?;
        let Filling { field, filled, .. } = &self.fillings[number];
        let sizes: Vec<(u32, u32)> = (*filled..)
            .zip(values)
            .map(|(record, value)| check_value(&field.kind, value).map_err(|e| self.bad_value(record, &field.name, e)))
            .collect::<Result<_>>()?;
        let filled = values.iter().zip(sizes).try_for_each(|(value, size)| self.fill_one(number, value, size));
        self.guard(filled)
    }

    /// Adds the values of the next `count` records as one block of numbers (`shape` is then empty)
    /// or arrays of one shape.
    ///
    /// # Errors
    /// As [`Writer::fill`].
    pub fn fill_block(&mut self, field: NewField, data: &[u8], shape: &[u64], count: usize) -> Result<()> {
        self.check_usable()?;
        let number = self.filling(field)?;
        self.check_room(number, count)?;
        let Filling { field, filled, .. } = &self.fillings[number];
        let scalar = matches!(field.kind, FieldType::Scalar(_));
        let bytes = block_value(&field.kind, shape);
        check_block(&field.kind, data, shape, bytes, count)
            .map_err(|(i, detail)| self.bad_value(filled + i as u64, &field.name, detail))?;
        let value = |i: usize| {
            let data = &data[i * bytes..(i + 1) * bytes];
            if scalar { Value::Number(data) } else { Value::Array { data, shape } }
        };
        let filled = (0..count).try_for_each(|i| self.fill_one(number, &value(i), (0, 0)));
        self.guard(filled)
    }

    fn check_room(&self, number: usize, count: usize) -> Result<()> {
        let Filling { field, filled, .. } = &self.fillings[number];
        if count as u64 <= self.records - filled {
            return Ok(());
        }
        let detail = format!("a value too many: the file has {} records", self.records);
        Err(self.bad_value(self.records, &field.name, detail))
    }

    fn fill_one(&mut self, number: usize, value: &Value<'_>, size: (u32, u32)) -> Result<()> {
        let columns = self.columns_of_filling(number);
        self.append_value(columns.start, value, size)?;
        self.fillings[number].filled += 1;
        let held: usize = self.columns[columns].iter().map(|column| column.pending.len()).sum();
        if held >= HELD {
            self.write_filled(number)
        } else if self.heap_is_full() {
            self.flush_heap()
        } else {
            Ok(())
        }
    }

    /// The name of a field that is in the schema or being added.
    pub(crate) fn field_name(&self, id: u32) -> String {
        let fields = self.document.schema.fields().iter().chain(self.fillings.iter().map(|filling| &filling.field));
        fields.into_iter().find(|field| field.id == id).map_or_else(String::new, |field| field.name.clone())
    }

    /// Sets how a field's further values are compressed. The field is in the schema or being added.
    pub(crate) fn set_compression(&mut self, id: u32, compression: Option<Compression>) {
        if let Some(filling) = self.fillings.iter_mut().find(|filling| filling.field.id == id) {
            filling.field.compression = compression;
        } else {
            self.document.schema.set_compression(id, compression);
            self.document_changed = true;
        }
    }

    /// Writes the held entries as chunks.
    fn write_filled(&mut self, number: usize) -> Result<()> {
        self.settle_if_held(self.columns_of_filling(number).start)?;
        self.flush_heap()?;
        let end = self.fillings[number].filled;
        for column in self.columns_of_filling(number) {
            self.write_pending(column, end)?;
        }
        Ok(())
    }

    /// The number of records with a value of a new field. The field can be committed once all
    /// records have one.
    ///
    /// # Errors
    /// [`Error::Schema`]: the field was committed or dropped.
    pub fn filled(&self, field: NewField) -> Result<u64> {
        Ok(self.fillings[self.filling(field)?].filled)
    }

    /// Adds a completed new field to the file, durably. Every record must have a value.
    ///
    /// # Errors
    /// [`Error::Unfilled`]: some records have no value; the field is dropped. Otherwise as
    /// [`Writer::commit`].
    pub fn commit_field(&mut self, field: NewField) -> Result<u64> {
        self.check_usable()?;
        let number = self.filling(field)?;
        let Filling { field: definition, filled, .. } = &self.fillings[number];
        if *filled < self.records {
            let (path, name) = (self.path.clone(), definition.name.clone());
            let error = Error::Unfilled { path, field: name, filled: *filled, records: self.records };
            self.drop_new_field(field)?;
            return Err(error);
        }
        let committed = self.commit_filled(number);
        self.guard(committed)
    }

    fn commit_filled(&mut self, number: usize) -> Result<u64> {
        self.write_filled(number)?;
        let schema = self.document.schema.with(&self.fillings[number].field);
        let (named, columns) = (self.named_columns(), self.columns_of_filling(number));
        self.columns[named..columns.end].rotate_right(columns.len());
        let Filling { field, .. } = self.fillings.remove(number);
        self.document.schema =
            schema.map_err(|detail| Error::AddField { path: self.path.clone(), field: field.name, detail })?;
        self.document_changed = true;
        self.commit_changes(false)
    }

    /// Drops a new field and its values. Dropping it twice, or after its commit, is allowed.
    ///
    /// # Errors
    /// The written values cannot be truncated.
    pub fn drop_new_field(&mut self, field: NewField) -> Result<()> {
        let Ok(number) = self.filling(field) else { return Ok(()) };
        let columns = self.columns_of_filling(number);
        self.columns.drain(columns);
        self.fillings.remove(number);
        if self.check_usable().is_err() {
            return Ok(());
        }
        let cut = self.cut_off_tail();
        self.guard(cut)
    }

    /// Truncates the values of dropped fields, if nothing else has been written since the last
    /// commit.
    fn cut_off_tail(&mut self) -> Result<()> {
        let Some(footer) = self.footer else { return Ok(()) };
        if !self.fillings.is_empty() || self.records != footer.records || self.position() == footer.end() {
            return Ok(());
        }
        self.heap.clear();
        self.buffer.clear();
        // The truncation must be durable before anything is written there: after a crash no old
        // tail may follow a new one.
        let storage = self.storage()?;
        storage.set_len(footer.end()).and_then(|()| storage.sync()).map_err(|e| Error::io(&self.path, e))?;
        (self.buffer_at, self.writeback_at, self.commit_start) = (footer.end(), footer.end(), footer.end());
        Ok(())
    }

    /// Commits the complete new fields and drops the others. Returns the error of the first
    /// incomplete field.
    pub(crate) fn end_fillings(&mut self) -> Result<()> {
        let mut ended = Ok(());
        while let Some(filling) = self.fillings.first() {
            match self.commit_field(NewField(filling.field.id)) {
                Ok(_) => {}
                Err(error @ Error::Unfilled { .. }) => ended = ended.and(Err(error)),
                Err(error) => return Err(error),
            }
        }
        ended
    }

    /// Removes a field from the schema, durably. Pending records are committed with it.
    ///
    /// Its bytes stay in the file; only older commits refer to them.
    ///
    /// # Errors
    /// [`Error::NoField`]; [`Error::Schema`]: it is the only field; [`Error::Filling`]; and as
    /// [`Writer::commit`].
    pub fn drop_field(&mut self, name: &str) -> Result<u64> {
        self.check_appendable()?;
        let schema = self.schema();
        let Some(position) = schema.position(name) else {
            let (path, known) = (self.path.clone(), schema.describe());
            return Err(Error::NoField { path, field: name.to_owned(), known });
        };
        if schema.fields().len() == 1 {
            return Err(Error::Schema(format!("{}: field {name:?} is the only one", self.path.display())));
        }
        self.commit()?;
        let Field { id, .. } = self.document.schema.remove(position);
        self.document.use_id(id);
        self.columns.retain(|column| column.field != id);
        self.document_changed = true;
        self.commit()
    }

    /// Refuses records while a field is being added: they would have no value for it.
    pub(crate) fn check_appendable(&self) -> Result<()> {
        self.check_usable()?;
        match self.fillings.first() {
            None => Ok(()),
            Some(filling) => Err(Error::Filling { path: self.path.clone(), field: filling.field.name.clone() }),
        }
    }

    /// The number of columns of the schema's fields. Columns of fields that are being added follow
    /// them.
    pub(crate) fn named_columns(&self) -> usize {
        self.columns.len() - self.fillings.iter().map(|filling| filling.columns).sum::<usize>()
    }

    fn columns_of_filling(&self, number: usize) -> std::ops::Range<usize> {
        let before = &self.fillings[..number];
        let start = self.named_columns() + before.iter().map(|filling| filling.columns).sum::<usize>();
        start..start + self.fillings[number].columns
    }

    fn filling(&self, field: NewField) -> Result<usize> {
        self.fillings.iter().position(|filling| filling.field.id == field.0).ok_or_else(|| {
            Error::Schema(format!("{}: the new field was committed or dropped already", self.path.display()))
        })
    }
}
