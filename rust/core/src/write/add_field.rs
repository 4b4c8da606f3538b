//! `NewField` and the `Writer` methods that add a field to existing records. Values come in record
//! order; the field is committed once every record has one.

use crate::error::{Error, Result};
use crate::format::schema::Field;
use crate::write::field::{FieldWriter, NewFieldWriter};
use crate::write::value::{Block, Value, check_block, check_value};
use crate::write::writer::Writer;

/// Bytes of entries of a new field held in memory before they are written as chunks. Only the
/// commit of the field refers to these chunks.
const HELD: usize = 32 << 20;

/// A handle for a field that is being added: [`Writer::start_field`] returns it, [`Writer::fill`]
/// takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewField(u32);

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
        let refused = |detail| Error::AddField { path: self.path().to_owned(), field: field.name.clone(), detail };
        if self.schema().position(&field.name).is_some() {
            let detail = format!("the file already has it; add the new values as {:?}", format!("{}_v2", field.name));
            return Err(refused(detail));
        }
        if self.new_fields.iter().any(|new| new.field.name == field.name) {
            return Err(refused("it is already being added".to_owned()));
        }
        let id = self.metadata.free_id().map_err(refused)?;
        let mut field = field.clone();
        field.id = id;
        self.metadata.schema.with(&field).map_err(refused)?;
        self.commit()?;
        self.new_fields.push(NewFieldWriter { writer: FieldWriter::new(&field), field, filled: 0 });
        self.metadata.use_id(id);
        Ok(NewField(id))
    }

    /// Adds the values of a new field for the next records, in record order.
    ///
    /// # Errors
    /// [`Error::BadValue`]: a value does not fit, or there are more values than records; this call
    /// then adds nothing. Also failed writes.
    pub fn fill(&mut self, field: NewField, values: &[Value<'_>]) -> Result<()> {
        self.check_usable()?;
        let number = self.find_new(field)?;
        self.check_room(number, values.len())?;
        let NewFieldWriter { field, filled, .. } = &self.new_fields[number];
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
        let number = self.find_new(field)?;
        self.check_room(number, count)?;
        let NewFieldWriter { field, filled, .. } = &self.new_fields[number];
        let block = Block::new(&field.kind, shape);
        check_block(&field.kind, data, shape, count)
            .map_err(|(i, detail)| self.bad_value(filled + i as u64, &field.name, detail))?;
        let filled = (0..count).try_for_each(|i| self.fill_one(number, &block.value(i, data, shape), (0, 0)));
        self.guard(filled)
    }

    fn check_room(&self, number: usize, count: usize) -> Result<()> {
        let NewFieldWriter { field, filled, .. } = &self.new_fields[number];
        if count as u64 <= self.records - filled {
            return Ok(());
        }
        let detail = format!("too many values: the file has {} records", self.records);
        Err(self.bad_value(self.records, &field.name, detail))
    }

    fn fill_one(&mut self, number: usize, value: &Value<'_>, size: (u32, u32)) -> Result<()> {
        let new = &mut self.new_fields[number];
        new.writer.append(value, size, &mut self.output, &mut self.scratch)?;
        new.filled += 1;
        if self.must_choose(&self.new_fields[number].writer) {
            self.new_fields[number].choose(&mut self.output, &mut self.scratch)?;
        }
        if self.new_fields[number].writer.pending() >= HELD {
            self.write_filled(number)
        } else if self.output.strings_are_due() {
            self.put_strings()
        } else {
            Ok(())
        }
    }

    /// Writes the held entries as chunks.
    fn write_filled(&mut self, number: usize) -> Result<()> {
        self.new_fields[number].choose(&mut self.output, &mut self.scratch)?;
        self.put_strings()?;
        let new = &mut self.new_fields[number];
        new.writer.write_pending(&mut self.output, new.filled)
    }

    /// The number of records with a value of a new field. The field can be committed once all
    /// records have one.
    ///
    /// # Errors
    /// [`Error::Schema`]: the field was committed or dropped.
    pub fn filled(&self, field: NewField) -> Result<u64> {
        Ok(self.new_fields[self.find_new(field)?].filled)
    }

    /// Adds a completed new field to the file, durably. Every record must have a value.
    ///
    /// # Errors
    /// [`Error::Unfilled`]: some records have no value; the field is dropped. Otherwise as
    /// [`Writer::commit`].
    pub fn commit_field(&mut self, field: NewField) -> Result<u64> {
        self.check_usable()?;
        let number = self.find_new(field)?;
        let NewFieldWriter { field: definition, filled, .. } = &self.new_fields[number];
        if *filled < self.records {
            let (path, name) = (self.path().to_owned(), definition.name.clone());
            let error = Error::Unfilled { path, field: name, filled: *filled, records: self.records };
            self.drop_new_field(field)?;
            return Err(error);
        }
        let committed = self.commit_filled(number);
        self.guard(committed)
    }

    fn commit_filled(&mut self, number: usize) -> Result<u64> {
        self.write_filled(number)?;
        let NewFieldWriter { field, writer, .. } = self.new_fields.remove(number);
        let refused = |detail| Error::AddField { path: self.path().to_owned(), field: field.name.clone(), detail };
        self.metadata.schema = self.metadata.schema.with(&field).map_err(refused)?;
        self.fields.push(writer);
        self.metadata_changed = true;
        self.commit_changes(false)
    }

    /// Drops a new field and its values. Dropping it twice, or after its commit, is allowed.
    ///
    /// # Errors
    /// The written values cannot be truncated.
    pub fn drop_new_field(&mut self, field: NewField) -> Result<()> {
        let Ok(number) = self.find_new(field) else { return Ok(()) };
        self.new_fields.remove(number);
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
        if self.new_fields.is_empty() && self.records == footer.records && self.output.position() != footer.end() {
            self.output.cut(footer.end())?;
            self.commit_start = footer.end();
        }
        Ok(())
    }

    /// Commits the complete new fields and drops the others. Returns the error of the first
    /// incomplete field.
    pub(super) fn end_new_fields(&mut self) -> Result<()> {
        let mut ended = Ok(());
        while let Some(new) = self.new_fields.first() {
            match self.commit_field(NewField(new.field.id)) {
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
            let (path, known) = (self.path().to_owned(), schema.describe());
            return Err(Error::NoField { path, field: name.to_owned(), known });
        };
        if schema.fields().len() == 1 {
            return Err(Error::Schema(format!("{}: field {name:?} is the only one", self.path().display())));
        }
        self.commit()?;
        let Field { id, .. } = self.metadata.schema.remove(position);
        self.metadata.use_id(id);
        self.fields.remove(position);
        self.metadata_changed = true;
        self.commit()
    }

    /// Refuses records while a field is being added: they would have no value for it.
    pub(super) fn check_appendable(&self) -> Result<()> {
        self.check_usable()?;
        match self.new_fields.first() {
            None => Ok(()),
            Some(new) => Err(Error::Filling { path: self.path().to_owned(), field: new.field.name.clone() }),
        }
    }

    fn find_new(&self, field: NewField) -> Result<usize> {
        self.new_fields.iter().position(|new| new.field.id == field.0).ok_or_else(|| {
            Error::Schema(format!("{}: the new field was already committed or dropped", self.path().display()))
        })
    }
}
